"""What objects hold together stays as it was, whatever is written to one of them."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bidplane.api.kinds import POD, RESOURCE_CLAIM
from bidplane.errors import ApiError
from bidplane.machinery.clock import SystemClock
from bidplane.plane import Planes
from bidplane.plane.call import Call
from bidplane.plane.plane import Plane
from bidplane.plane.storage.feed import Key
from bidplane.plane.verbs import create, patch, update
from bidplane.runtime.identity.credentials import Tokens

VOLUMES = "/spec/volumes/0/projected/sources/0/serviceAccountToken/path"
CHANGES: list[tuple[str, str, Any]] = [
    ("", patch.MERGE, {"metadata": {"annotations": {"a": "1"}, "labels": {"l": "1"}}}),
    ("", patch.STRATEGIC, {"spec": {"tolerations": [{"key": "mine", "operator": "Exists"}]}}),
    ("", patch.JSON, [{"op": "add", "path": "/metadata/annotations", "value": {"j": "2"}}]),
    ("", patch.JSON, [{"op": "replace", "path": VOLUMES, "value": "other"}]),
    ("status", patch.MERGE, {"status": {"phase": "Running", "message": "up"}}),
    (
        "status",
        patch.STRATEGIC,
        {"status": {"conditions": [{"type": "Ready", "status": "True"}]}},
    ),
]


def _call(plane: Plane, name: str = "", subresource: str = "", manager: str = "kubectl") -> Call:
    return Call(
        resource=plane.registry.of(POD),
        namespace="default",
        name=name,
        subresource=subresource,
        manager=manager,
        warnings=[],
    )


def _pod(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}}


def _claim(name: str) -> dict[str, Any]:
    request = {"name": "gpus", "exactly": {"deviceClassName": "gpu.example"}}
    return {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}}


def _held(plane: Plane, name: str) -> dict[str, Any]:
    item = plane.store.get(Key("pods", "default", name))
    assert item is not None
    return item.obj


def test_pods_hold_together_what_they_have_alike_and_change_only_themselves(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        planes = Planes(
            tmp_path,
            clock=SystemClock(),
            tokens=Tokens(b"t" * 32),
            durable=False,
            inline=True,
            dice=random.Random(1),
        )
        await planes.create("lab")
        plane = planes.plane("lab")
        for name in ("a", "b"):
            await create.create(plane, _call(plane, name), _pod(name))
        one, other = _held(plane, "a"), _held(plane, "b")
        assert (
            one["metadata"]["managedFields"][0]["fieldsV1"]
            is other["metadata"]["managedFields"][0]["fieldsV1"]
        )
        assert one["spec"]["volumes"][0]["projected"] is other["spec"]["volumes"][0]["projected"]
        assert one["spec"]["tolerations"][0] is other["spec"]["tolerations"][0]
        before = msgspec.json.encode(other)
        for manager in ("kubectl", "another", ""):
            for subresource, media, sent in CHANGES:
                call = _call(plane, "a", subresource, manager)
                try:
                    await patch.patch(plane, call, sent, media)
                except ApiError as refused:  # of a pod's spec little may change
                    words = str(refused)
                    if "may not change" not in words and "can not be modified" not in words:
                        raise
            sent = {**_held(plane, "a"), "metadata": {**_held(plane, "a")["metadata"]}}
            sent["metadata"]["labels"] = {"put": manager or "nobody"}
            await update.update(plane, _call(plane, "a", "", manager), sent)
        assert msgspec.json.encode(_held(plane, "b")) == before
        for item in plane.store.everything():
            assert msgspec.json.decode(item.raw) == item.obj, item
        # As they were written down: read from the file they are the same, and held together.
        await planes.sleep("lab")
        plane = planes.plane("lab")
        assert msgspec.json.encode(_held(plane, "b")) == before
        await create.create(plane, _call(plane, "c"), _pod("c"))
        assert (
            _held(plane, "b")["metadata"]["managedFields"][0]["fieldsV1"]
            is _held(plane, "c")["metadata"]["managedFields"][0]["fieldsV1"]
        )
        await planes.close()

    asyncio.run(story())


def test_only_a_creation_from_inside_keeps_its_status(tmp_path: Path) -> None:
    async def story() -> None:
        planes = Planes(
            tmp_path, clock=SystemClock(), tokens=Tokens(b"t" * 32), durable=False, inline=True
        )
        await planes.create("lab")
        client = planes.client("lab")
        result = {"request": "gpus", "driver": "d.example", "pool": "p", "device": "gpu-0"}
        said = {"allocation": {"devices": {"results": [result]}}}
        for kept in (False, True):
            claim = {**_claim(f"kept-{kept}".lower()), "status": said}
            made = await client.create(RESOURCE_CLAIM, claim, "default", with_status=kept)
            assert made.get("status") == (said if kept else {})
        wrong = {**_claim("wrong"), "status": {"allocation": "all of it"}}
        with pytest.raises(ApiError, match=r"status\.allocation"):  # what it says is looked at
            await client.create(RESOURCE_CLAIM, wrong, "default", with_status=True)
        await planes.close()

    asyncio.run(story())
