"""Words for tests of the exchange: agents, pools, bids and devices in a few letters."""

from __future__ import annotations

from typing import Any

import msgspec

from bidplane.api.lease import DeviceRef
from bidplane.api.pool import Divides
from bidplane.core.devices.mig import Slot
from bidplane.exchange.round.devices import DeviceView
from bidplane.exchange.snapshot import AgentView, BidView, PoolView
from bidplane.ledger.leases import Terms

CREDIT = 1_000_000
PRICE = 3_600_000  # one GPU costs a milli-credit a second
MILLI = 1000


def agent(name: str, *, owner: str = "", refill: int = 10, deleting: bool = False) -> AgentView:
    return AgentView(
        name=name,
        uid=f"uid-{name}",
        owner=owner or name,
        refill=refill * CREDIT,
        cap=2 * refill * CREDIT,
        deleting=deleting,
    )


def movable(name: str, **more: Any) -> AgentView:
    """Rich, and its leases may be moved."""
    return msgspec.structs.replace(agent(name, refill=1000), movable=True, **more)


def pool(name: str = "h100", *, floor: int = 100_000, notice: int = 30) -> PoolView:
    return PoolView(
        name=name,
        product=name.upper(),
        floor=floor,
        target_percent=92,
        terms=Terms(notice_seconds=notice, restart_seconds=30, epoch_seconds=60),
    )


def gpus(count: int, *, node: str = "n1", product: str = "H100") -> tuple[DeviceView, ...]:
    return tuple(
        DeviceView(
            device=DeviceRef(node=node, driver="gpu.bidplane.dev", pool=node, name=f"gpu-{i}"),
            product=product,
            domain=f"{node}/nvlink-0",
        )
        for i in range(count)
    )


def bid(
    uid: str,
    agent: str,
    gpus: int,
    price: int,
    *,
    pool: str = "",
    created: int = 0,
    share: str = "",
    blocks: int = 1,
) -> BidView:
    return BidView(
        uid=uid,
        namespace=f"agent-{agent}",
        name=uid,
        agent=agent,
        gpus=gpus,
        price=price,
        pool=pool,
        created=created,
        share=share,
        blocks=blocks,
    )


def parted(view: PoolView, *, mig: bool = False) -> PoolView:
    """A pool that also sells parts of its GPUs."""
    if not mig:
        return msgspec.structs.replace(view, divides=Divides.EIGHTHS)
    geometry = (Slot("3g.40gb", 4), Slot("2g.20gb", 0), Slot("1g.10gb", 2), Slot("1g.10gb", 3))
    return msgspec.structs.replace(view, divides=Divides.MIG, geometry=geometry)


def with_memory(views: tuple[DeviceView, ...], memory: str = "80Gi") -> tuple[DeviceView, ...]:
    traits = {"memory": memory, "bidplane.dev/migCapable": "True"}
    return tuple(msgspec.structs.replace(v, traits=traits) for v in views)


def shown_lease(
    uid: str, name: str, *, status: dict[str, Any] | None = None, **metadata: str
) -> dict[str, Any]:
    """The host's object of the lease that the bid of a uid won."""
    return {
        "metadata": {"name": name, **metadata},
        "spec": {
            "agent": "a",
            "bid": {"namespace": "agent-a", "name": "b", "uid": uid},
            "pool": "h100",
            "node": "n1",
            "devices": [],
            "maxPrice": "1.00",
        },
        "status": status or {},
    }
