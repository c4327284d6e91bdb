"""What lies under every plane looks as if it had been made in it."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

from bidplane.api import crds
from bidplane.api.kinds import BID, CRD
from bidplane.machinery.clock import SystemClock
from bidplane.plane import Planes
from bidplane.plane.storage.journal import Journal
from bidplane.runtime.identity.credentials import Tokens


def _planes(folder: Path, given: Any = crds.for_agents) -> Planes:
    return Planes(
        folder,
        clock=SystemClock(),
        tokens=Tokens(b"t" * 32),
        crds=lambda plane: given(),
        durable=False,
        inline=True,
        dice=random.Random(1),
    )


def _shown(crd: dict[str, Any]) -> dict[str, Any]:
    metadata = crd["metadata"]
    told = {key: metadata.get(key) for key in ("name", "generation", "finalizers")}
    conditions = [
        {**one, "lastTransitionTime": ""} for one in crd.get("status", {}).get("conditions", ())
    ]
    return {**crd, "metadata": told, "status": {**crd["status"], "conditions": conditions}}


def test_a_crd_of_ours_is_what_creating_it_would_have_made(tmp_path: Path) -> None:
    async def run() -> None:
        planes, bare = _planes(tmp_path / "a"), _planes(tmp_path / "b", tuple)
        await planes.create("one")
        await bare.create("one")
        for crd in crds.for_agents():
            name = crd["metadata"]["name"]
            laid = await planes.client("one").get(CRD, name)
            made = await bare.client("one").create(CRD, crd)
            assert _shown(dict(laid)) == _shown(dict(made))

    asyncio.run(run())


def test_it_costs_a_plane_no_row(tmp_path: Path) -> None:
    async def run() -> None:
        planes = _planes(tmp_path)
        await planes.create("one")
        await planes.close()

    asyncio.run(run())
    rows = Journal(tmp_path / "one" / "plane.db", durable=False).rows()
    assert not [row.key for row in rows if row.key.startswith("customresource")]


def test_one_that_was_changed_in_a_plane_is_brought_up_to_date(tmp_path: Path) -> None:
    """As a row an older release wrote: the spec of the release that runs wins."""

    async def run() -> None:
        planes = _planes(tmp_path)
        await planes.create("one")
        client = planes.client("one")
        name = f"{BID.plural}.{BID.group}"
        await client.patch(CRD, name, {"spec": {"names": {"shortNames": ["old"]}}})
        await planes.close()
        planes = _planes(tmp_path)
        await planes.create("one")
        now = await planes.client("one").get(CRD, name)
        want = next(crd for crd in crds.for_agents() if crd["metadata"]["name"] == name)
        assert now["spec"]["names"].get("shortNames") == want["spec"]["names"].get("shortNames")

    asyncio.run(run())


def test_a_deleted_one_takes_its_objects_along(tmp_path: Path) -> None:
    async def run() -> None:
        planes = _planes(tmp_path)
        await planes.create("one")
        client = planes.client("one")
        spec = {"gpus": 1, "maxPrice": "1"}
        bid = {"metadata": {"name": "b"}, "spec": spec}
        await client.create(BID, bid, "default")
        await client.delete(CRD, f"{BID.plural}.{BID.group}")
        for _ in range(20):
            await asyncio.sleep(0)
        names = {crd["metadata"]["name"] for crd in (await client.list(CRD)).items}
        assert f"{BID.plural}.{BID.group}" not in names
        assert planes.plane("one").store.count(f"{BID.plural}.{BID.group}") == 0

    asyncio.run(run())
