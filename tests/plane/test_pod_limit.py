"""A plane has a limit on pods, so that a mistyped number fills no process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidplane.api.agent import DEFAULT_LIMITS, PlaneLimits
from bidplane.api.kinds import POD
from bidplane.errors import ApiError
from bidplane.machinery.clock import SystemClock
from bidplane.plane import Planes
from bidplane.runtime.identity.credentials import Tokens

from .conftest import Embedded, Endpoint, pod

PODS = "/api/v1/namespaces/default/pods"


def test_the_pod_past_the_limit_is_refused_and_told_how_to_raise_it(
    embedded: Embedded, plane: Endpoint
) -> None:
    name = plane.url.rpartition("/")[2]
    embedded.wait(embedded.planes.limit(name, PlaneLimits(pods=2)))
    for number in range(2):
        plane.ok("POST", PODS, pod(f"p{number}"))
    answer = plane.call("POST", PODS, pod("p2"))
    assert (answer.code, answer.body["reason"]) == (403, "Forbidden")
    assert f"the plane '{name}' has 2 pods, and its limit is 2" in answer.body["message"]
    assert f"`bidplane plane limit {name} --pods NUMBER`" in answer.body["message"]
    plane.ok("DELETE", f"{PODS}/p0")
    plane.ok("POST", PODS, pod("p2"))
    embedded.wait(embedded.planes.limit(name, PlaneLimits(pods=3)))
    plane.ok("POST", PODS, pod("p3"))


def test_the_limit_outlives_the_process_and_the_host_has_none(tmp_path: Path) -> None:
    def opened() -> Planes:
        tokens = Tokens(b"k" * 32)
        return Planes(tmp_path, clock=SystemClock(), tokens=tokens, durable=False)

    async def work() -> None:
        planes = opened()
        await planes.create("lab")
        assert planes.plane("lab").limits == DEFAULT_LIMITS
        await planes.limit("lab", PlaneLimits(pods=7))
        await planes.close()
        planes = opened()
        await planes.create("host")
        assert planes.plane("lab").limits == PlaneLimits(pods=7).over(DEFAULT_LIMITS)
        assert planes.plane("host").limits is None
        for name, limit in (("host", 5), ("lab", -1), ("lab", 1_000_001)):
            with pytest.raises(ApiError):
                await planes.limit(name, PlaneLimits(pods=limit))
        await planes.close()

    asyncio.run(work())


@settings(max_examples=25, deadline=None)
@given(
    limit=st.integers(1, 5),
    steps=st.lists(st.tuples(st.sampled_from(("make", "end")), st.integers(1, 6)), max_size=6),
)
def test_writes_at_once_never_pass_the_limit(
    tmp_path_factory: pytest.TempPathFactory, limit: int, steps: list[tuple[str, int]]
) -> None:
    async def work() -> None:
        root = tmp_path_factory.mktemp("limit")
        planes = Planes(root, clock=SystemClock(), tokens=Tokens(b"k" * 32), durable=False)
        await planes.create("lab")
        await planes.limit("lab", PlaneLimits(pods=limit))
        client, names, total = planes.client("lab"), list[str](), 0
        for step, count in steps:
            if step == "make":
                wanted = [f"p{total + number}" for number in range(count)]
                total += count
                made = await asyncio.gather(
                    *(client.create(POD, pod(name), "default") for name in wanted),
                    return_exceptions=True,
                )
                room = limit - len(names)
                assert sum(not isinstance(one, Exception) for one in made) == min(room, count)
                pairs = zip(wanted, made, strict=True)
                names += [name for name, one in pairs if not isinstance(one, Exception)]
            else:
                ended, names = names[:count], names[count:]
                await asyncio.gather(*(client.delete(POD, name, "default") for name in ended))
            listing = await client.list(POD, "default")
            assert len(listing.items) == len(names) <= limit
        await planes.close()

    asyncio.run(work())
