"""Which counters are a lease's: of whole GPUs, of fractions, and of MIG instances."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from bidplane.api import labels
from bidplane.api.lease import DeviceRef
from bidplane.api.money import GPU_WEIGHT
from bidplane.core.devices.topology import Gpu, Machine
from bidplane.exchange.round.devices import device_views
from bidplane.exchange.round.usage import UsageWatch
from bidplane.kube.client import Object
from bidplane.ledger.records import Lease
from bidplane.node.inventory.slices import slices_of
from bidplane.telemetry.model import Counters

CARD = Gpu(index=0, uuid="GPU-0", product="H100", memory=80 << 30, mig=True)
SLICES = slices_of(Machine(name="n1", gpus=(CARD,)))
NODE = {"metadata": {"name": "n1"}}
GPU = DeviceRef(node="n1", driver="gpu.bidplane.dev", pool="n1", name="gpu-0")


def lease(id: str, share: str = "", slots: tuple[int, ...] = ()) -> Lease:
    return Lease(
        id=id,
        bid_uid=id,
        bid_namespace="agent-a",
        bid_name=id,
        wallet="wallet/a",
        agent="a",
        owner="a",
        pool="h100",
        domain="n1",
        devices=(msgspec.structs.replace(GPU, share=share, slots=slots),),
        max_price=1,
        win_price=1,
        win_base=1,
        price=1,
        weight=GPU_WEIGHT,
        minimum=0,
        notice_seconds=30,
        restart_seconds=30,
        epoch_seconds=60,
    )


def told(percent: float | None, instance: str = "", engine: float | None = None) -> Counters:
    return Counters(
        node="n1",
        index=0,
        uuid="GPU-0",
        instance=instance,
        utilisation_percent=percent,
        engine_percent=engine,
    )


def claim(id: str, start: int, number: int | None, *, block: int | None = None) -> dict[str, Any]:
    name = next(
        d["name"]
        for piece in SLICES
        for d in piece["spec"].get("devices") or ()
        if "1g10gb" in d["name"] and d["name"].endswith(f"-{start}")
    )
    made = {"driver": GPU.driver, "pool": "n1", "device": name, "data": {"gpuInstance": number}}
    shown_as = f"lease-{id}" if block is None else f"lease-{id}-{block}"
    return {"metadata": {"labels": {labels.LEASE: shown_as}}, "status": {"devices": [made]}}


def idle(leases: Sequence[Lease], counters: Sequence[Counters], claims: Sequence[Any] = ()) -> Any:
    """Who is idle after ten minutes of such counters."""

    async def whole() -> Any:
        async def read(nodes: Sequence[Object]) -> Sequence[Counters]:
            return counters

        watch = UsageWatch(read)
        for at in range(0, 600, 15):
            await watch.look(
                leases,
                nodes=[NODE],
                devices=[view for piece in SLICES for view in device_views(piece)],
                slices=SLICES,
                claims=claims,
                windows={"h100": 300},
                now=lambda at=at: 1000.0 + at,  # type: ignore[misc]
            )
        return set(watch.idle), watch.used

    return asyncio.run(whole())


def test_a_whole_gpu_tells_its_own_utilisation() -> None:
    assert idle([lease("a")], [told(0.0)]) == ({"a"}, frozenset())
    assert idle([lease("a")], [told(40.0)]) == (set(), {"a"})
    assert idle([lease("a")], [told(None, engine=0.0)]) == ({"a"}, frozenset())
    assert idle([lease("a")], [told(None)]) == (set(), frozenset())
    assert idle([lease("a")], []) == (set(), frozenset())


def test_of_a_fraction_it_is_the_gpu_that_tells() -> None:
    halves = [lease("a", "1/2", (0, 1, 2, 3)), lease("b", "1/2", (4, 5, 6, 7))]
    assert idle(halves, [told(0.0)])[0] == {"a", "b"}
    assert idle(halves, [told(50.0)])[0] == set(), "any of them may be at work"


def test_a_mig_instance_is_told_apart_by_its_number() -> None:
    parts = [lease("a", "1g.10gb", (0,)), lease("b", "1g.10gb", (1,))]
    claims = [claim("a", 0, 7), claim("b", 1, 9)]
    counters = [told(None), told(None, "7", 0.0), told(None, "9", 60.0)]
    assert idle(parts, counters, claims) == ({"a"}, {"b"})
    # A driver that does not say which it made is not asked about another's.
    assert idle(parts, counters, [claim("a", 0, None), claims[1]])[0] == set()


def test_a_lease_is_not_read_from_its_name() -> None:
    """The claim of a block names the block's object, of a lease whose id may have hyphens."""
    one = lease("night-run", "1g.10gb", (0,))
    gang = lease("gang", "1g.10gb", (0,))
    both = (*gang.devices, msgspec.structs.replace(GPU, share="1g.10gb", slots=(1,)))
    gang = msgspec.structs.replace(gang, devices=both, parts=(1, 1))
    counters = [told(None, "7", 0.0), told(None, "9", 0.0)]
    assert idle([one], counters, [claim("night-run", 0, 7)])[0] == {"night-run"}
    blocks = [claim("gang", 0, 7, block=0), claim("gang", 1, 9, block=1)]
    assert idle([gang], counters, blocks)[0] == {"gang"}
    assert idle([gang], counters, [blocks[0], claim("gang", 1, 9, block=2)])[0] == set()


def test_claims_that_say_nothing_of_a_lease_or_of_our_devices_are_passed_over() -> None:
    nobodys = claim("a", 0, 7)
    nobodys["metadata"]["labels"] = {}
    others = claim("a", 0, 7)
    others["status"]["devices"][0]["device"] = "of-another-driver"
    unmade = claim("a", 0, None)
    counters = [told(None, "7", 0.0)]
    assert idle([lease("a", "1g.10gb", (0,))], counters, [nobodys, others, unmade])[0] == set()
    assert idle([lease("a", "1g.10gb", (0,))], counters, [claim("a", 0, 7)])[0] == {"a"}
