"""Many kinds followed as one: what each is told is what a watch of its own would tell."""

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bidplane.api.kinds import BID, CONFIG_MAP, CRD, POD, SECRET, Kind
from bidplane.drivers.embedded import crds_for
from bidplane.errors import NotFound
from bidplane.kube.client import FollowingClient
from bidplane.machinery.clock import SystemClock
from bidplane.machinery.planes import PlaneCache, PlaneCaches
from bidplane.plane import Planes
from bidplane.plane.storage import feed as feeds
from bidplane.runtime.identity.credentials import Tokens

KINDS = (CONFIG_MAP, SECRET, BID, POD)
BIDS = "bids.bidplane.dev"


def _planes(folder: Path) -> Planes:
    return Planes(
        folder,
        clock=SystemClock(),
        tokens=Tokens(b"t" * 32),
        crds=crds_for,
        durable=False,
        inline=True,
        dice=random.Random(1),
    )


def _names(cache: PlaneCache, kind: Kind) -> set[str]:
    return {obj["metadata"]["name"] for obj in cache[kind].in_namespace("default")}


async def _until(true: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0.005)


def _thing(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}}


step = st.tuples(
    st.sampled_from(["put", "remove", "turn"]),
    st.sampled_from([CONFIG_MAP, SECRET]),
    st.sampled_from("abc"),
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=st.lists(step, max_size=40))
def test_each_kind_is_told_what_its_own_watch_tells(
    steps: list[tuple[str, Kind, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    async def story() -> None:
        planes = _planes(tmp_path_factory.mktemp("planes"))
        await planes.create("lab")
        client = planes.client("lab")
        assert isinstance(client, FollowingClient)
        told: dict[str, dict[Kind, list[tuple[str, str]]]] = {
            way: {CONFIG_MAP: [], SECRET: []} for way in ("together", "alone")
        }
        since = {
            kind: (await client.list(kind, "default")).resource_version for kind in told["alone"]
        }

        async def together() -> None:
            async for kind, events in client.follow(since):
                assert events is not None
                told["together"][kind] += [
                    (event.type, event.object["metadata"]["resourceVersion"]) for event in events
                ]

        async def alone(kind: Kind) -> None:
            async for event in client.watch(kind, resource_version=since[kind]):
                version = event.object["metadata"]["resourceVersion"]
                told["alone"][kind].append((event.type, version))

        tasks = [asyncio.create_task(one) for one in (together(), alone(CONFIG_MAP), alone(SECRET))]
        there: set[tuple[Kind, str]] = set()
        for what, kind, name in steps:
            if what == "turn":
                await asyncio.sleep(0)
            elif what == "remove" and (kind, name) in there:
                await client.delete(kind, name, "default")
                there.discard((kind, name))
            elif what == "put" and (kind, name) in there:
                change = {"metadata": {"labels": {"at": str(random.random())}}}
                await client.patch(kind, name, change, "default")
            elif what == "put":
                await client.create(kind, _thing(name), "default")
                there.add((kind, name))
        for _ in range(5):
            await asyncio.sleep(0)
        assert told["together"] == told["alone"]
        for task in tasks:
            assert not task.done()
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert not any(feed._signals for feed in planes.plane("lab").store._feeds.values())
        await planes.close()

    asyncio.run(story())


def test_a_kind_that_is_no_longer_served_takes_none_of_the_others_with_it(tmp_path: Path) -> None:
    async def story() -> None:
        planes = _planes(tmp_path)
        await planes.create("lab")
        client = planes.client("lab")
        caches = PlaneCaches(planes, KINDS, clock=SystemClock())
        caches.open("lab")
        await _until(lambda: caches.get("lab"))
        cache = caches.get("lab")
        assert cache is not None
        definition = await client.get(CRD, BIDS)
        await client.delete(CRD, BIDS)
        async with asyncio.timeout(20):
            with suppress(NotFound):
                while await client.list(BID):  # until its definition is gone
                    await asyncio.sleep(0.005)
        await client.create(CONFIG_MAP, _thing("after"), "default")
        await _until(lambda: "after" in _names(cache, CONFIG_MAP))
        # And it is followed again when it is served again.
        spec = {key: value for key, value in definition.items() if key != "status"}
        metadata = {"name": BIDS}
        await client.create(CRD, {**spec, "metadata": metadata})
        bid = {"metadata": {"name": "b"}, "spec": {"agent": "lab", "gpus": 1, "maxPrice": "1"}}
        await client.create(BID, bid, "default")
        await _until(lambda: _names(cache, BID) == {"b"})
        await caches.close_all()
        await planes.close()

    asyncio.run(story())


def test_a_plane_that_was_closed_and_opened_is_followed_on(tmp_path: Path) -> None:
    async def story() -> None:
        planes = _planes(tmp_path)
        await planes.create("lab")
        caches = PlaneCaches(planes, KINDS, clock=SystemClock())
        caches.open("lab")
        await _until(lambda: caches.get("lab"))
        cache = caches.get("lab")
        assert cache is not None
        await planes.sleep("lab")
        await planes.client("lab").create(CONFIG_MAP, _thing("after"), "default")
        await _until(lambda: "after" in _names(cache, CONFIG_MAP))
        await caches.close_all()
        await planes.close()

    asyncio.run(story())


def test_a_plane_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    async def story() -> None:
        planes = _planes(tmp_path)
        caches = PlaneCaches(planes, KINDS, clock=SystemClock())
        caches.open("lab")
        await asyncio.sleep(0.05)
        assert caches.get("lab") is None
        await planes.create("lab")
        await _until(lambda: caches.get("lab"))
        await caches.close_all()
        await planes.close()

    asyncio.run(story())


def test_who_fell_behind_the_history_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        monkeypatch.setattr(feeds, "HISTORY_COUNT", 4)
        planes = _planes(tmp_path)
        await planes.create("lab")
        client = planes.client("lab")
        caches = PlaneCaches(planes, KINDS, clock=SystemClock())
        caches.open("lab")
        await _until(lambda: caches.get("lab"))
        cache = caches.get("lab")
        assert cache is not None
        # Without a turn of the loop between them: nobody can have read what is forgotten.
        made = [client.create(CONFIG_MAP, _thing(f"n{at}"), "default") for at in range(12)]
        await asyncio.gather(*made)
        await _until(lambda: {f"n{at}" for at in range(12)} <= _names(cache, CONFIG_MAP))
        await caches.close_all()
        await planes.close()

    asyncio.run(story())


def test_a_watch_from_long_ago_is_told_all_of_it_whatever_is_held(tmp_path: Path) -> None:
    """With a selector, too: what an object was before decides whether it comes or goes."""

    async def story() -> None:
        told = {}
        for size in (200, 1 << 20):
            planes = _planes(tmp_path / str(size))
            planes._recent = feeds.Recent(2, size)
            await planes.create("lab")
            client = planes.client("lab")
            start = (await client.list(CONFIG_MAP)).resource_version
            for at in range(5):
                await client.create(CONFIG_MAP, _thing(f"n{at}"), "default")
            for at in range(20):
                labels = {"labels": {"even": str(at % 2 == 0).lower()}}
                await client.patch(CONFIG_MAP, f"n{at % 5}", {"metadata": labels}, "default")
            await client.delete(CONFIG_MAP, "n0", "default")
            feed = planes.plane("lab").store.feed("configmaps")
            assert (len(list(feed.newest_first())) < 5) == (size == 200)
            for selector, count in (("", 26), ("even=true", 18)):
                seen = []
                async with asyncio.timeout(10):
                    async for event in client.watch(
                        CONFIG_MAP, resource_version=start, labels=selector
                    ):
                        seen.append((event.type, event.object["metadata"]["name"]))
                        if len(seen) == count:
                            break
                told[size, selector] = seen
            await planes.close()
        for selector in ("", "even=true"):
            assert told[200, selector] == told[1 << 20, selector]

    asyncio.run(story())
