"""Limits of a plane: what one agent may fill, and how a refusal says what to do."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bidplane.api.agent import DEFAULT_LIMITS, PlaneLimits
from bidplane.api.kinds import CONFIG_MAP, CRD, NAMESPACE
from bidplane.errors import ApiError
from bidplane.machinery.clock import SystemClock
from bidplane.plane import Planes
from bidplane.plane.admission.limits import usage
from bidplane.plane.call import Call, User
from bidplane.plane.storage.journal import Journal
from bidplane.plane.verbs import update
from bidplane.runtime.identity.credentials import Tokens


def _opened(folder: Path) -> Planes:
    tokens = Tokens(b"k" * 32)
    return Planes(folder, clock=SystemClock(), tokens=tokens, durable=False, inline=True)


def _map(name: str, size: int = 0) -> dict[str, Any]:
    return {"metadata": {"name": name}, "data": {"x": "x" * size}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


async def _refused(work: Any) -> ApiError:
    with pytest.raises(ApiError) as refused:
        await work
    return refused.value


def test_objects(folder: Path) -> None:
    async def story() -> None:
        planes = _opened(folder)
        await planes.create("lab")
        client = planes.client("lab")
        count = usage(planes.plane("lab")).objects
        await planes.limit("lab", PlaneLimits(objects=count + 2))
        await client.create(CONFIG_MAP, _map("a"), "default")
        await client.create(CONFIG_MAP, _map("b"), "default")
        error = await _refused(client.create(CONFIG_MAP, _map("c"), "default"))
        assert (error.code, error.reason) == (403, "Forbidden")
        assert f"its limit is {count + 2}" in str(error)
        assert "spec.limits.objects" in str(error)
        assert "`bidplane plane limit lab --objects NUMBER`" in str(error)
        await client.delete(CONFIG_MAP, "a", "default")
        await client.create(CONFIG_MAP, _map("c"), "default")
        await planes.close()

    asyncio.run(story())


def test_many_at_once_never_pass_the_limit(folder: Path) -> None:
    async def story() -> None:
        tokens = Tokens(b"k" * 32)
        planes = Planes(folder, clock=SystemClock(), tokens=tokens, durable=False)
        await planes.create("lab")
        client = planes.client("lab")
        most = usage(planes.plane("lab")).objects + 5
        await planes.limit("lab", PlaneLimits(objects=most))
        creations = [client.create(CONFIG_MAP, _map(f"m-{n}"), "default") for n in range(30)]
        await asyncio.gather(*creations, return_exceptions=True)
        assert usage(planes.plane("lab")).objects == most
        await planes.close()

    asyncio.run(story())


def test_bytes_also_of_objects_that_grow(folder: Path) -> None:
    async def story() -> None:
        planes = _opened(folder)
        await planes.create("lab")
        client, plane = planes.client("lab"), planes.plane("lab")
        await planes.limit("lab", PlaneLimits(bytes=plane.store.bytes + 100_000))
        await client.create(CONFIG_MAP, _map("a", 60_000), "default")
        resource = plane.registry.of(CONFIG_MAP)
        call = Call(resource=resource, namespace="default", name="a", user=User("agent"))
        larger = {"apiVersion": "v1", "kind": "ConfigMap", **_map("a", 200_000)}
        error = await _refused(update.update(plane, call, larger))
        assert error.code == 403
        assert "spec.limits.bytes" in str(error)
        smaller = {"apiVersion": "v1", "kind": "ConfigMap", **_map("a", 10)}
        await update.update(plane, call, smaller)
        await client.create(CONFIG_MAP, _map("b", 120_000), "default")
        assert (await _refused(client.create(CONFIG_MAP, _map("c"), "default"))).code == 403
        await planes.close()

    asyncio.run(story())


def test_disk(folder: Path) -> None:
    async def story() -> None:
        planes = _opened(folder)
        await planes.create("lab")
        client = planes.client("lab")
        disk = planes.plane("lab").store.disk
        await planes.limit("lab", PlaneLimits(disk=disk + 300_000))
        await client.create(CONFIG_MAP, _map("a", 500_000), "default")
        error = await _refused(client.create(CONFIG_MAP, _map("b"), "default"))
        assert (error.code, error.reason) == (507, "InsufficientStorage")
        assert "`bidplane plane limit lab --disk NUMBER`" in str(error)
        await client.delete(CONFIG_MAP, "a", "default")
        await planes.close()

    asyncio.run(story())


def test_definitions(folder: Path) -> None:
    async def story() -> None:
        planes = _opened(folder)
        await planes.create("lab")
        await planes.limit("lab", PlaneLimits(definitions=1))
        client = planes.client("lab")

        def definition(plural: str) -> dict[str, Any]:
            schema = {"openAPIV3Schema": {"type": "object"}}
            version = {"name": "v1", "served": True, "storage": True, "schema": schema}
            return {
                "metadata": {"name": f"{plural}.a.test"},
                "spec": {
                    "group": "a.test",
                    "scope": "Namespaced",
                    "names": {"plural": plural, "kind": plural.title()},
                    "versions": [version],
                },
            }

        await client.create(CRD, definition("ones"))
        error = await _refused(client.create(CRD, definition("twos")))
        assert error.code == 403
        assert "spec.limits.definitions" in str(error)
        await planes.close()

    asyncio.run(story())


def test_an_agents_limits_go_before_and_the_host_has_none(folder: Path) -> None:
    async def story() -> None:
        planes = _opened(folder)
        await planes.create("lab")
        await planes.create("host")
        assert planes.plane("lab").limits == DEFAULT_LIMITS
        await planes.limit("lab", PlaneLimits(pods=5, objects=6000))
        await planes.limit("lab", PlaneLimits(objects=7000), by_agent=True)
        await planes.close()
        planes = _opened(folder)
        expected = PlaneLimits(pods=5, objects=7000).over(DEFAULT_LIMITS)
        assert planes.plane("lab").limits == expected
        await planes.limit("lab", PlaneLimits(), by_agent=True)
        assert planes.plane("lab").limits == PlaneLimits(pods=5, objects=6000).over(DEFAULT_LIMITS)
        assert planes.plane("host").limits is None
        assert (await _refused(planes.limit("host", PlaneLimits(pods=1)))).code == 400
        await planes.client("host").create(NAMESPACE, {"metadata": {"name": "any"}})
        await planes.close()

    asyncio.run(story())


def test_a_pod_limit_of_an_earlier_release_stays(folder: Path) -> None:
    async def story() -> None:
        planes = _opened(folder)
        await planes.create("lab")
        await planes.close()
        journal = Journal(folder / "lab" / "plane.db", durable=False)
        journal.remember("podLimit", "7")
        journal.close()
        planes = _opened(folder)
        assert planes.plane("lab").limits == PlaneLimits(pods=7).over(DEFAULT_LIMITS)
        await planes.close()

    asyncio.run(story())
