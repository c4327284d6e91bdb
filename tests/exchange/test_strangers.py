"""What others use of the host's GPUs is not for sale; and why, in words."""

from __future__ import annotations

from typing import Any

import pytest

from bidplane.api import labels
from bidplane.api.lease import Phase
from bidplane.core.devices.topology import Gpu, Machine
from bidplane.exchange import snapshot
from bidplane.exchange.snapshot import HostSnapshot
from bidplane.node.inventory.slices import slices_of

from .market import Market
from .words import PRICE, bid

Json = dict[str, Any]
BOX = Machine(
    name="box",
    gpus=tuple(
        Gpu(index=n, uuid=f"GPU-{n}", product="H100", memory=80 << 30, mig=True) for n in range(4)
    ),
)
NODE = {
    "metadata": {"name": "box", "uid": "n"},
    "spec": {},
    "status": {"conditions": [{"type": "Ready", "status": "True"}]},
}


def taken(claims: tuple[Json, ...] = (), pods: tuple[Json, ...] = ()) -> HostSnapshot:
    return snapshot.take(
        agents=(), pools=(), bids=(), slices=slices_of(BOX), leases=(), nodes=[NODE],
        claims=claims, pods=pods,
    )  # fmt: skip


def closed(seen: HostSnapshot) -> dict[str, str]:
    return {view.device.name: view.closed for view in seen.devices if view.closed}


def claim(*devices: str, namespace: str = "lab", admin: bool = False, **marks: str) -> Json:
    results = [
        {
            "request": "r",
            "driver": "gpu.bidplane.dev",
            "pool": "box",
            "device": device,
            **({"adminAccess": True} if admin else {}),
        }
        for device in devices
    ]
    metadata = {"name": "mine", "namespace": namespace, "labels": marks}
    return {"metadata": metadata, "status": {"allocation": {"devices": {"results": results}}}}


def pod(resource: str = labels.GPU_RESOURCE, **status: Any) -> Json:
    limits = {resource: "2", "cpu": "1"}
    return {
        "metadata": {"name": "train", "namespace": "lab"},
        "spec": {
            "nodeName": "box",
            "containers": [{"name": "main", "resources": {"limits": limits}}],
        },
        "status": {"phase": "Running", **status},
    }


def test_devices_of_any_claim_that_is_no_leases_are_not_for_sale() -> None:
    seen = taken((claim("gpu-1", "gpu-3"),))
    why = "held by the claim lab/mine, on node box"
    assert closed(seen) == {"gpu-1": why, "gpu-3": why}
    assert {device.name for device in seen.foreign} == {"gpu-1", "gpu-3"}


def test_a_part_that_is_claimed_keeps_its_gpu_from_sale() -> None:
    assert list(closed(taken((claim("gpu-2-mig-1g10gb-0"),)))) == ["gpu-2"]


def test_a_leases_own_claim_holds_nothing_against_it_and_a_label_alone_makes_none() -> None:
    marks: dict[str, Any] = {labels.AGENT: "trainer", labels.LEASE: "lease-1"}
    assert not closed(taken((claim("gpu-0", namespace="agent-trainer", **marks),)))
    assert list(closed(taken((claim("gpu-0", namespace="lab", **marks),)))) == ["gpu-0"]


def test_admin_access_holds_nothing() -> None:
    assert not closed(taken((claim("gpu-0", admin=True),)))


@pytest.mark.parametrize("resource", [labels.GPU_RESOURCE, "nvidia.com/mig-1g.10gb"])
def test_of_a_node_with_a_pod_whose_cards_nobody_names_none_is_for_sale(resource: str) -> None:
    found = closed(taken(pods=(pod(resource),)))
    words = f"on node box, where pod lab/train has 2 {resource} and nobody says which cards"
    assert len(found) == 4
    assert all(why.startswith(words) for why in found.values())


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Succeeded"},
        {"phase": "Failed"},
        {"extendedResourceClaimStatus": {"resourceClaimName": "made"}},
    ],
)
def test_a_pod_that_has_ended_or_whose_claim_names_its_cards_closes_no_node(status: Json) -> None:
    assert not closed(taken(pods=(pod(**status),)))


def test_pods_without_gpus_or_without_a_node_close_none() -> None:
    unbound = pod()
    del unbound["spec"]["nodeName"]
    assert not closed(taken(pods=(pod("cpu"), unbound)))


def test_a_sale_whose_device_the_host_gave_to_others_is_void_and_costs_nothing(
    market: Market,
) -> None:
    market.round(bid("b1", "trainer", 2, PRICE))
    before, sold = market.balance("trainer"), market.lease("b1")
    market.round(foreign=frozenset(sold.devices[:1]))
    assert market.lease("b1").phase is Phase.RELEASED
    assert market.balance("trainer") == before


def test_a_lease_pays_nothing_while_others_have_its_device_too(market: Market) -> None:
    market.round(bid("b1", "trainer", 2, PRICE))
    market.claim("b1")
    lease = market.lease("b1")
    market.round(foreign=frozenset(lease.devices[:1]))
    assert market.lease("b1").breached_at
    paid = market.balance("trainer")
    market.round(after=300)
    assert market.balance("trainer") == paid
    market.round(foreign=frozenset())
    assert not market.lease("b1").breached_at
