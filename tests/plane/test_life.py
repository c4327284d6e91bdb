"""A plane sleeps, wakes, is copied and comes back; nothing of it is lost on the way."""

import asyncio
import contextlib
import gzip
import random
from pathlib import Path

import apsw
import pytest

from bidplane.api.kinds import (
    AGENT,
    BID,
    CONFIG_MAP,
    CRON_JOB,
    DEPLOYMENT,
    JOB,
    POD,
    SERVICE,
    Kind,
)
from bidplane.drivers.embedded import EmbeddedDriver, crds_for
from bidplane.errors import ApiError, NotFound
from bidplane.plane import Planes
from bidplane.plane.life import PlaneLife
from bidplane.runtime.identity.credentials import HOST_PLANE, Tokens
from bidplane.sim.loop import VirtualClock, run
from bidplane.wiring.controllers import Controllers
from bidplane.wiring.server import prepare_host


def template(**spec):
    return {
        "metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [{"name": "main", "image": "x"}], **spec},
    }


def web(replicas):
    selector = {"matchLabels": {"app": "web"}}
    spec = {"replicas": replicas, "selector": selector, "template": template()}
    return {"metadata": {"name": "web"}, "spec": spec}


class Site:
    """Planes and their controllers in virtual time; requests are made as HTTP makes them."""

    def __init__(self, planes, controllers, life):
        self.planes, self.controllers, self.life = planes, controllers, life

    @contextlib.contextmanager
    def uses(self, name):
        """A request from outside is being served."""
        told = self.planes._uses.begin(f"/planes/{name}/api")
        yield
        self.planes._uses.end(told)


@pytest.fixture
def stories(tmp_path):
    async def whole(story, **options):
        clock = VirtualClock()
        planes = Planes(
            tmp_path / "planes", clock=clock, tokens=Tokens(b"t" * 32), crds=crds_for,
            durable=False, dice=random.Random(1), **options,
        )  # fmt: skip
        await prepare_host(planes, None)
        driver = EmbeddedDriver(planes, "https://test")
        controllers = Controllers(planes.client(HOST_PLANE), driver, clock=clock, own_host=True)
        life = PlaneLife(planes, controllers, clock=clock)
        work = [asyncio.create_task(controllers.run()), asyncio.create_task(life.run(100.0))]
        try:
            await asyncio.sleep(1)
            await story(Site(planes, controllers, life))
            assert not any(task.done() for task in work), work
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            await planes.close()

    return lambda story: run(whole(story, inline=True))


async def names(client, kind):
    return [obj["metadata"]["name"] for obj in (await client.list(kind)).items]


def test_what_nobody_uses_sleeps_and_wakes_on_a_request(stories):
    async def story(site):
        await site.life.create("scratch")
        client = site.planes.client("scratch")
        await client.create(DEPLOYMENT, web(2), "default")
        await asyncio.sleep(1)
        assert len(await names(client, POD)) == 2
        before = site.planes.plane("scratch").store.revision
        await asyncio.sleep(200)
        assert not site.planes.is_awake("scratch"), "the controllers do not keep it awake"
        assert site.planes.is_awake(HOST_PLANE)
        assert site.planes.uid("scratch")
        assert not site.planes.is_awake("scratch"), "checking a token does not wake it"
        with site.uses("scratch"):
            await client.patch(DEPLOYMENT, "web", {"spec": {"replicas": 3}}, "default")
        assert site.planes.is_awake("scratch")
        await asyncio.sleep(1)
        assert len(await names(client, POD)) == 3, "its controllers are awake, too"
        assert site.planes.plane("scratch").store.revision > before

    stories(story)


def test_a_request_that_is_served_keeps_it_awake(stories):
    async def story(site):
        await site.life.create("scratch")
        with site.uses("scratch"):
            await asyncio.sleep(1000)
            assert site.planes.is_awake("scratch")
        await asyncio.sleep(200)
        assert not site.planes.is_awake("scratch")

    stories(story)


def test_a_time_that_comes_wakes_it(stories):
    async def story(site):
        await site.life.create("scratch")
        client = site.planes.client("scratch")
        spec = {"template": template(restartPolicy="Never")}
        cron = {"schedule": "0 * * * *", "jobTemplate": {"spec": spec}}
        await client.create(CRON_JOB, {"metadata": {"name": "tick"}, "spec": cron}, "default")
        asleep = 0
        for _ in range(70):
            await asyncio.sleep(60)
            asleep += not site.planes.is_awake("scratch")
        assert asleep > 40
        assert len(await names(client, JOB)) == 1

    stories(story)


def test_what_happens_on_the_host_wakes_an_agents_plane(stories):
    async def story(site):
        host = site.planes.client(HOST_PLANE)
        agent = {"metadata": {"name": "trainer"}, "spec": {"owner": "ann", "maxPrice": "1.00"}}
        await host.create(AGENT, agent)
        await asyncio.sleep(1)
        client = site.planes.client("trainer")
        resources = {"limits": {"nvidia.com/gpu": "1"}}
        container = {"name": "main", "image": "x", "resources": resources}
        pod = {"metadata": {"name": "train"}, "spec": {"containers": [container]}}
        await client.create(POD, pod, "default")
        await asyncio.sleep(200)
        assert not site.planes.is_awake("trainer")
        (bid,) = (await host.list(BID)).items
        said = {"phase": "Waiting", "reason": "Outbid", "message": "the price is 3.00"}
        name, space = bid["metadata"]["name"], bid["metadata"]["namespace"]
        await host.patch(BID, name, {"status": said}, space, subresource="status")
        await asyncio.sleep(1)
        assert site.planes.is_awake("trainer")
        (mine,) = (await client.list(BID)).items
        assert mine["status"]["message"] == "the price is 3.00"

    stories(story)


def test_a_fork_is_a_plane_of_its_own(stories):
    async def story(site):
        await site.life.create("one")
        one = site.planes.client("one")
        await one.create(CONFIG_MAP, {"metadata": {"name": "a"}, "data": {"k": "1"}}, "default")
        await site.life.fork("one", "two")
        two = site.planes.client("two")
        assert (await two.get(CONFIG_MAP, "a", "default"))["data"] == {"k": "1"}
        assert site.planes.uid("two") != site.planes.uid("one")
        await two.patch(CONFIG_MAP, "a", {"data": {"k": "2"}}, "default")
        assert (await one.get(CONFIG_MAP, "a", "default"))["data"] == {"k": "1"}
        await two.create(DEPLOYMENT, web(1), "default")
        await asyncio.sleep(1)
        assert len(await names(two, POD)) == 1, "a fork has controllers"
        assert await names(one, POD) == []

    stories(story)


def test_a_snapshot_comes_back(stories):
    async def story(site):
        await site.life.create("one")
        one = site.planes.client("one")
        await one.create(CONFIG_MAP, {"metadata": {"name": "a"}, "data": {"k": "1"}}, "default")
        uid, revision = site.planes.uid("one"), site.planes.plane("one").store.revision
        awake = await site.life.snapshot("one")
        await site.life.sleep("one")
        asleep = await site.life.snapshot("one")
        assert not site.planes.is_awake("one"), "a snapshot wakes nobody"
        await site.life.delete("one")
        with pytest.raises(NotFound):
            await one.get(CONFIG_MAP, "a", "default")
        for snapshot, same in ((awake, True), (asleep, False)):
            await site.life.restore("one", snapshot, same_uid=same)
            assert (await one.get(CONFIG_MAP, "a", "default"))["data"] == {"k": "1"}
            assert (site.planes.uid("one") == uid) is same
            assert site.planes.plane("one").store.revision >= revision
            with pytest.raises(ApiError, match="already"):
                await site.life.restore("one", snapshot, same_uid=same)
            await site.life.delete("one")
        assert list((site.planes.root).glob(".*")) == [], "nothing is left over"

    stories(story)


def test_what_is_no_snapshot_is_refused(stories, tmp_path):
    async def story(site):
        with pytest.raises(ApiError, match="no snapshot"):
            await site.life.restore("one", b"not a database" * 100, same_uid=False)
        await site.life.create("two")
        file = tmp_path / "newer"
        file.write_bytes(await site.life.snapshot("two"))
        connection = apsw.Connection(str(file))
        connection.pragma("user_version", 999)
        connection.close()
        with pytest.raises(ApiError, match="newer Bidplane"):
            await site.life.restore("one", file.read_bytes(), same_uid=False)
        assert "one" not in site.planes.names()

    stories(story)


def test_an_agents_plane_is_the_agents(stories):
    async def story(site):
        agent = {"metadata": {"name": "trainer"}, "spec": {"owner": "ann", "maxPrice": "1.00"}}
        await site.planes.client(HOST_PLANE).create(AGENT, agent)
        await asyncio.sleep(1)
        for refused in (site.life.delete("trainer"), site.life.fork("trainer", HOST_PLANE)):
            with pytest.raises(ApiError, match="belongs to"):
                await refused
        await site.life.fork("trainer", "what-if")
        assert "what-if" in site.planes.names()

    stories(story)


def test_a_snapshot_under_load_is_one_moment(tmp_path):
    """With real threads: whatever is being written, a copy has a prefix of it."""

    async def main():
        clock = VirtualClock()
        planes = Planes(tmp_path, clock=clock, tokens=Tokens(b"t" * 32), durable=False)
        await planes.create("busy")
        client = planes.client("busy")

        async def write():
            for number in range(300):
                obj = {"metadata": {"name": f"n-{number:04}"}}
                await client.create(CONFIG_MAP, obj, "default")

        writing = asyncio.create_task(write())
        sizes = []
        for copy in range(5):
            await asyncio.sleep(0.02)
            await planes.fork("busy", f"copy-{copy}")
            found = await names(planes.client(f"copy-{copy}"), CONFIG_MAP)
            found = [name for name in found if name.startswith("n-")]
            assert found == [f"n-{number:04}" for number in range(len(found))]
            sizes.append(len(found))
        await writing
        assert sizes == sorted(sizes)
        await planes.close()

    asyncio.run(main())


def test_past_a_number_of_open_planes_the_least_used_sleep_at_once(stories):
    async def story(site):
        site.life._open_limit = 4  # the host's plane among them
        for number in range(3):
            await site.life.create(f"plane-{number}")
            await asyncio.sleep(1)
        with site.uses("plane-0"):
            for number in range(3, 8):
                await site.life.create(f"plane-{number}")
                await asyncio.sleep(1)
            assert site.planes.is_awake("plane-0"), "somebody is being served"
            assert site.planes.is_awake("plane-7"), "it was just made"
            assert not site.planes.is_awake("plane-1")
            assert site.planes.open_count <= 5
        assert await names(site.planes.client("plane-1"), POD) == []

    stories(story)


def test_asking_for_planes_that_are_not_there_leaves_nothing_behind(stories):
    async def story(site):
        for number in range(100):
            with site.uses(f"nobody-{number}"):
                pass
        assert not [name for name in site.planes._uses._last if name.startswith("nobody")]

    stories(story)


def test_a_snapshot_of_an_earlier_version_comes_back(stories):
    """
    `snapshot-of-schema-1.gz` was written before Services had addresses and pods a token volume.

    It is never written anew: a schema that comes later brings a file of its own beside it.
    """
    old = gzip.decompress(Path(__file__).with_name("snapshot-of-schema-1.gz").read_bytes())
    things = Kind("old.test", "v1", "Thing", "things")

    async def story(site):
        await site.life.restore("back", old, same_uid=True)
        assert site.planes.uid("back") == "old-uid"
        back = site.planes.client("back")
        assert (await back.get(CONFIG_MAP, "a", "default"))["data"] == {"k": "2"}
        assert (await back.get(things, "t", "default"))["spec"] == {"size": 3}
        # All of it can be written again, with what this version adds.
        changed = {"metadata": {"labels": {"seen": "yes"}}}
        for kind, name in ((POD, "p"), (SERVICE, "web"), (DEPLOYMENT, "web"), (things, "t")):
            found = await back.patch(kind, name, changed, "default")
            assert found["metadata"]["labels"]["seen"] == "yes"
        assert (await back.get(SERVICE, "web", "default"))["spec"]["clusterIP"]
        await asyncio.sleep(5)
        assert len(await names(back, POD)) == 2, "its controllers are at work"

    stories(story)
