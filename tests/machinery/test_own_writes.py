"""A controller sees what it wrote at once, and never anything that is not there any more."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from bidplane.api.kinds import POD
from bidplane.machinery.informer import Informer
from bidplane.sim.loop import VirtualClock, run
from machinery.scripted import ScriptedServer


class Slow(ScriptedServer):
    """Its watch tells a second late."""

    async def watch(self, *args, **kwargs):
        async for event in super().watch(*args, **kwargs):
            await asyncio.sleep(1)
            yield event


async def following(story):
    server = Slow()
    informer = Informer(server, POD, clock=VirtualClock())
    task = asyncio.create_task(informer.run())
    await informer.synced.wait()
    try:
        await story(server, informer)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def shown(informer):
    return {obj["metadata"]["name"]: obj["metadata"]["resourceVersion"] for obj in informer.items()}


def test_a_write_is_seen_before_the_watch_tells_of_it():
    async def story(server, informer):
        server.put("a")
        informer.record_write(server.objects["default", "a"])
        assert shown(informer) == {"a": "1"}
        heard = []
        informer.on_change(lambda event, obj: heard.append(event))
        await asyncio.sleep(5)
        assert heard == [], "it is not told twice"

    run(following(story))


def test_an_answer_that_comes_late_brings_nothing_back():
    async def story(server, informer):
        server.put("a")
        answer = server.objects["default", "a"]
        server.remove("a")
        await asyncio.sleep(5)
        informer.record_write(answer)
        assert shown(informer) == {}

    run(following(story))


def test_what_was_asked_to_go_looks_so():
    async def story(server, informer):
        server.put("a")
        await asyncio.sleep(5)
        informer.record_delete(informer.get("default", "a"))
        (cached,) = informer.in_namespace("default")
        assert cached["metadata"]["deletionTimestamp"]
        assert "deletionTimestamp" not in informer.get("default", "a")["metadata"], "only there"
        server.remove("a")
        await asyncio.sleep(5)
        server.put("a", uid="another")
        await asyncio.sleep(5)
        (cached,) = informer.in_namespace("default")
        assert "deletionTimestamp" not in cached["metadata"]

    run(following(story))


steps = st.lists(
    st.tuples(
        st.sampled_from(["put", "remove", "forget", "end"]),
        st.sampled_from("abc"),
        st.sampled_from([None, 0.0, 0.5, 3.0]),  # when the answer arrives; None: to someone else
        st.sampled_from([0.0, 0.1, 2.0]),
    ),
    max_size=12,
)


@settings(deadline=None)
@given(steps)
def test_in_the_end_it_shows_what_is_there(taken):
    async def story(server, informer):
        answers = []

        async def answer(obj, after):
            await asyncio.sleep(after)
            informer.record_write(obj)
            current = informer.get("default", obj["metadata"]["name"])
            newest = server.objects.get(("default", obj["metadata"]["name"]))
            if newest is obj:
                assert current == obj, "our own write is not seen"

        uids = iter(range(100))
        for action, name, after, pause in taken:
            match action:
                case "put":
                    current = server.objects.get(("default", name))
                    uid = current["metadata"]["uid"] if current else f"u{next(uids)}"
                    server.put(name, uid=uid)
                    if after is not None:
                        obj = server.objects["default", name]
                        answers.append(asyncio.create_task(answer(obj, after)))
                case "remove":
                    server.remove(name)
                case "forget":
                    server.forget()
                case "end":
                    server.end_watches()
            await asyncio.sleep(pause)
        await asyncio.gather(*answers)
        await asyncio.sleep(60)
        expected = {n: o["metadata"]["resourceVersion"] for (_, n), o in server.objects.items()}
        assert shown(informer) == expected
        assert {o["metadata"]["name"] for o in informer.in_namespace("default")} == set(expected)

    run(following(story))
