"""The caches of all planes: true before anyone is told, and nothing told is forgotten."""

import asyncio

from bidplane.api.kinds import BID, POD
from bidplane.errors import Unavailable
from bidplane.machinery.planes import PlaneCaches
from bidplane.sim.loop import VirtualClock, run
from machinery.scripted import ScriptedServer


class Driver:
    """Hands out one scripted server per plane and kind; makes nothing."""

    def __init__(self):
        self.servers = {}

    def client(self, name):
        return Both({kind: self.server(name, kind) for kind in (POD, BID)})

    def server(self, name, kind):
        if (name, kind) not in self.servers:
            self.servers[name, kind] = ScriptedServer()
        return self.servers[name, kind]


class Both:
    """Two scripted servers, one per kind, behind one client."""

    def __init__(self, servers):
        self._servers = servers

    async def list(self, kind, namespace=None, **selectors):
        return await self._servers[kind].list(kind)

    def watch(self, kind, namespace=None, *, resource_version, **selectors):
        return self._servers[kind].watch(kind, resource_version=resource_version)


class Told:
    def __init__(self):
        self.driver = Driver()
        self.planes = PlaneCaches(self.driver, (POD, BID), clock=VirtualClock())
        self.events, self.opened = [], []
        for kind in (POD, BID):
            self.planes.on_change(kind, self.changed)
        self.planes.on_open(self.open)

    def changed(self, plane, event, obj):
        is_open = self.planes.get(plane) is not None
        self.events.append((plane, event if is_open else "too early", obj["metadata"]["name"]))

    def open(self, plane):
        assert self.planes.get(plane) is not None
        self.opened.append(plane)


def test_what_is_there_is_told_when_all_of_the_plane_is_known():
    """Told kind by kind, a reconciler would look, see no plane, and forget the key."""

    async def story():
        recorder = Told()
        recorder.driver.server("trainer", POD).put("pod")
        bids = recorder.driver.server("trainer", BID)
        bids.put("bid")
        bids.fail(*[Unavailable("slow")] * 3)
        recorder.planes.open("trainer")
        await asyncio.sleep(0.1)
        assert recorder.planes.get("trainer") is None
        assert recorder.events == []
        await asyncio.sleep(10)
        assert recorder.events == [("trainer", "ADDED", "pod"), ("trainer", "ADDED", "bid")]
        assert recorder.opened == ["trainer"]
        await recorder.planes.close_all()

    run(story())


def test_what_happened_while_it_was_opening_is_not_lost():
    async def story():
        recorder = Told()
        pods = recorder.driver.server("trainer", POD)
        pods.put("gone")
        recorder.driver.server("trainer", BID).fail(*[Unavailable("slow")] * 5)
        recorder.planes.open("trainer")
        await asyncio.sleep(0.1)
        pods.remove("gone")
        pods.put("new")
        await asyncio.sleep(10)
        assert recorder.events == [("trainer", "ADDED", "new")]
        await recorder.planes.close_all()

    run(story())


def test_changes_are_told_of_the_plane_they_are_in():
    async def story():
        recorder = Told()
        for name in ("a", "b"):
            recorder.planes.open(name)
        await asyncio.sleep(1)
        recorder.driver.server("b", POD).put("pod")
        await asyncio.sleep(1)
        assert recorder.events == [("b", "ADDED", "pod")]
        await recorder.planes.close_all()

    run(story())


def test_opening_twice_is_opening_once():
    async def story():
        recorder = Told()
        recorder.planes.open("a")
        recorder.planes.open("a")
        await asyncio.sleep(1)
        assert recorder.driver.server("a", POD).lists == 1
        await recorder.planes.close_all()

    run(story())


def test_a_closed_plane_is_silent_and_can_be_opened_again():
    async def story():
        recorder = Told()
        recorder.planes.open("a")
        await asyncio.sleep(1)
        await recorder.planes.close("a")
        assert recorder.planes.get("a") is None
        recorder.driver.server("a", POD).put("pod")
        await asyncio.sleep(1)
        assert recorder.events == []
        await recorder.planes.close("a")
        recorder.planes.open("a")
        await asyncio.sleep(1)
        assert recorder.events == [("a", "ADDED", "pod")]
        assert recorder.opened == ["a", "a"]
        await recorder.planes.close_all()

    run(story())


def test_a_handler_with_a_bug_is_told_of_and_the_caches_stay_true(logs):

    async def story():
        recorder = Told()
        recorder.planes.on_change(BID, lambda plane, event, obj: obj["no such field"])
        recorder.planes.open("a")
        await asyncio.sleep(1)
        recorder.driver.server("a", BID).put("bid", spec={"gpus": 1})
        await asyncio.sleep(1)
        recorder.driver.server("a", POD).put("pod")
        await asyncio.sleep(1)
        assert recorder.events == [("a", "ADDED", "bid"), ("a", "ADDED", "pod")]
        await recorder.planes.close_all()

    run(story())
    assert [entry["log_level"] for entry in logs] == ["error"]
