"""An informer shows what the server has, whatever happens on the way."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidplane.api.kinds import POD
from bidplane.errors import ApiError, Gone, Unavailable
from bidplane.machinery.informer import Informer
from bidplane.sim.loop import VirtualClock, run
from machinery.scripted import ScriptedServer


class Follower:
    """What a handler would know if it only believed what it is told."""

    def __init__(self, informer):
        self.objects, self.events, self.wrong = {}, [], []
        informer.on_change(self.heard)

    def heard(self, event, obj):
        try:
            self.changed(event, obj)
        except Exception as error:  # an informer outlives its handlers' mistakes
            self.wrong.append(error)

    def changed(self, event, obj):
        key = obj["metadata"]["namespace"], obj["metadata"]["name"]
        self.events.append((event, obj["metadata"]["name"]))
        if event == "DELETED":
            del self.objects[key]
        else:
            cached = self.objects.get(key)
            assert (cached is None) == (event == "ADDED"), event
            assert cached is None or cached["metadata"]["uid"] == obj["metadata"]["uid"]
            assert cached is None or cached != obj, "told twice"
            self.objects[key] = obj


class Following:
    """An informer that runs, its server and its follower."""

    async def __aenter__(self):
        self.server = ScriptedServer()
        self.informer = Informer(self.server, POD, clock=VirtualClock())
        self.follower = Follower(self.informer)
        return self

    def start(self):
        self.task = asyncio.create_task(self.informer.run())

    async def __aexit__(self, *_):
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        for error in self.follower.wrong:
            raise error

    def shown(self):
        objects = self.informer.items()
        return {(obj["metadata"]["namespace"], obj["metadata"]["name"]): obj for obj in objects}


def test_the_first_list_makes_it_synced():
    async def story():
        async with Following() as it:
            it.server.put("a")
            assert not it.informer.synced.is_set()
            it.start()
            await it.informer.synced.wait()
            assert it.follower.events == [("ADDED", "a")]
            assert it.informer.get("default", "a") == it.server.objects["default", "a"]
            assert it.informer.get("other", "a") is None
            assert repr(it.informer) == "<Informer pods 1 objects>"

    run(story())


def test_changes_are_followed_without_listing_again():
    async def story():
        async with Following() as it:
            it.start()
            await it.informer.synced.wait()
            it.server.put("a")
            it.server.put("a", colour="red")
            it.server.remove("a")
            await asyncio.sleep(1)
            expected = [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]
            assert it.follower.events == expected
            assert it.server.lists == 1

    run(story())


def test_a_watch_that_ends_is_taken_up_where_it_was():
    async def story():
        async with Following() as it:
            it.start()
            await asyncio.sleep(1)
            it.server.put("a")
            await asyncio.sleep(1)
            it.server.end_watches()
            await asyncio.sleep(1)
            it.server.put("b")
            await asyncio.sleep(1)
            assert it.follower.events == [("ADDED", "a"), ("ADDED", "b")]
            assert (it.server.lists, it.server.watches) == (1, 2)

    run(story())


@pytest.mark.parametrize("trouble", [Gone("old"), Unavailable("down"), ApiError("odd")])
def test_after_trouble_it_lists_again_and_tells_each_difference_once(trouble):
    async def story():
        async with Following() as it:
            it.server.put("kept")
            it.server.put("changed")
            it.server.put("removed")
            it.start()
            await asyncio.sleep(1)
            it.follower.events.clear()
            it.server.failures.append(trouble)
            it.server.put("changed", colour="red")
            it.server.remove("removed")
            it.server.put("new")
            await asyncio.sleep(10)
            expected = [("ADDED", "new"), ("DELETED", "removed"), ("MODIFIED", "changed")]
            assert sorted(it.follower.events) == expected

    run(story())


def test_one_that_took_the_name_of_another_is_not_taken_for_it():
    """Handlers that wait for the end of the first would wait for ever."""

    async def story():
        async with Following() as it:
            it.server.put("a", uid="first")
            it.start()
            await asyncio.sleep(1)
            it.follower.events.clear()
            it.server.failures.append(Unavailable("down"))
            it.server.remove("a")
            it.server.put("a", uid="second")
            await asyncio.sleep(10)
            assert it.follower.events == [("DELETED", "a"), ("ADDED", "a")]

    run(story())


def test_it_backs_off_while_the_server_is_down_and_recovers_when_it_is_up():
    async def story():
        loop = asyncio.get_running_loop()
        async with Following() as it:
            it.server.fail(*[Unavailable("down")] * 20)
            it.start()
            await it.informer.synced.wait()
            # 0.05 + 0.1 + 0.2 + 0.5 + 1 + 15 × 2
            assert loop.time() == pytest.approx(31.85)
            it.server.put("a")
            await asyncio.sleep(1)
            began = loop.time()
            it.server.fail(Unavailable("once more"))
            it.server.put("b")
            while it.informer.get("default", "b") is None:
                await asyncio.sleep(0.01)
            assert loop.time() - began < 0.1, "a server that had worked is tried soon"

    run(story())


@pytest.mark.parametrize("trouble", ["gone for ever", "ends at once"])
def test_a_server_that_is_of_no_use_is_not_asked_without_pause(trouble):
    async def story():
        async with Following() as it:
            it.start()
            await asyncio.sleep(1)
            requests = it.server.lists + it.server.watches
            if trouble == "gone for ever":

                async def watch(*_, **__):
                    raise Gone("old")
                    yield

            else:

                async def watch(*_, **__):
                    it.server.watches += 1
                    return
                    yield

            it.server.watch = watch
            it.server.end_watches()
            await asyncio.sleep(100)
            assert it.server.lists + it.server.watches - requests < 2100

    run(story())


steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from("abc"), st.sampled_from("12")),
        st.tuples(st.just("remove"), st.sampled_from("abc")),
        st.tuples(st.just("forget")),
        st.tuples(st.just("bookmark")),
        st.tuples(st.just("end")),
        st.tuples(st.just("fail"), st.sampled_from([Gone, Unavailable, ApiError])),
        st.tuples(st.just("wait"), st.sampled_from([0.0, 0.05, 3.0])),
    ),
    max_size=30,
)


@settings(max_examples=150, deadline=None)
@given(steps)
def test_it_converges_to_what_the_server_has(script):
    async def story():
        async with Following() as it:
            it.start()
            for step in script:
                match step:
                    case ("put", name, uid):
                        current = it.server.objects.get(("default", name))
                        it.server.put(name, uid=current["metadata"]["uid"] if current else uid)
                    case ("remove", name):
                        it.server.remove(name)
                    case ("forget",):
                        it.server.forget()
                    case ("bookmark",):
                        it.server.bookmark()
                    case ("end",):
                        it.server.end_watches()
                    case ("fail", error):
                        it.server.fail(error("trouble"))
                    case ("wait", seconds):
                        await asyncio.sleep(seconds)
            await asyncio.sleep(100)
            assert it.shown() == it.server.objects
            assert it.follower.objects == it.server.objects

    run(story())
