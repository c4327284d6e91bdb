"""
Devices without a price that a bid needs beside its GPUs, such as NICs.

They are no part of the market: a filter before a round, which machines have them free; and asked
for again when what was won is shown, where a miss voids the win. Both ask the same question here,
of the slices and claims of that moment, so that nobody is sent again to where it was missed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bidplane.api import labels
from bidplane.api.agent import host_namespace
from bidplane.api.bid import BidBeside
from bidplane.api.kinds import RESOURCE_CLAIM, Object
from bidplane.core import binding
from bidplane.core.claims import Taken, read_claim, read_slices
from bidplane.core.claims.fast import Fleet, Placed
from bidplane.core.claims.model import taken_by
from bidplane.core.translation import owned_by

Needs = tuple[BidBeside, ...]

# Drivers of GPUs, whatever else they publish. So is any driver whose devices name a product.
_SELLERS = frozenset({labels.DEVICE_CLASS, "gpu.nvidia.com"})


def claim_name(lease: str) -> str:
    """The host's claim for what a lease has beside its GPUs."""
    return f"{lease}-beside"


def unpriced(slices: Iterable[Object]) -> list[Object]:
    """
    Slices of devices in one node that are nobody's to sell. A driver that publishes GPUs, or
    parts of them, gives away nothing: they have a price, or their owner has set none yet.
    """
    slices = [one for one in slices if one.get("spec")]
    sellers = _SELLERS | {
        one["spec"]["driver"]
        for one in slices
        if any(
            labels.PRODUCT_ATTRIBUTE in (device.get("attributes") or {})
            for device in one["spec"].get("devices") or ()
        )
    }
    return [
        {**one, "spec": {**one["spec"], "devices": _plain(one["spec"].get("devices"))}}
        for one in slices
        if one["spec"]["driver"] not in sellers and one["spec"].get("nodeName")
    ]


def _plain(devices: Sequence[Object] | None) -> list[Object]:
    """
    Without those that several claims may have a part of, since an agent would be shown all of
    it, and those that are prepared first, of which nobody would tell its plane.
    """
    odd = ("allowMultipleAllocations", *binding.FIELDS)
    return [one for one in devices or () if not any(map(one.get, odd))]


class Unpriced:
    """What machines have of such devices, and what of it is free."""

    def __init__(
        self,
        slices: Iterable[Object] = (),
        claims: Iterable[Object] = (),
        classes: Iterable[Object] = (),
    ) -> None:
        """`classes`: the host's. What its owner has made none for is not to be had."""
        self._slices = read_slices(unpriced(slices))
        self._claims = list(claims) if self._slices else []
        self._classes = {str(one["metadata"]["name"]): one for one in classes}
        self._known: dict[tuple[Needs, int, bool], dict[str, int]] = {}

    def unknown(self, needs: Needs) -> list[str]:
        """Classes that the host does not have."""
        return sorted({need.device_class for need in needs} - self._classes.keys())

    def sets(self, needs: Needs, most: int = 1, *, whoever_has_it: bool = False) -> dict[str, int]:
        """
        By node that has any: how many times, up to `most`, all the needs are free there; or there
        are, `whoever_has_it`. Raises `ClaimError`.
        """
        key = needs, most, whoever_has_it
        if self.unknown(needs):
            return {}
        if key not in self._known:
            taken = Taken() if whoever_has_it else taken_by(self._claims)
            nodes = sorted({one.where.node for one in self._slices if one.where.node})
            fleet = Fleet(self._slices, {node: {} for node in nodes}, self._classes, taken)
            claim = read_claim(_claim(needs))
            found: dict[str, int] = {}
            for node in nodes:
                while found.get(node, 0) < most and isinstance(
                    fleet.place([claim], [node]), Placed
                ):
                    found[node] = found.get(node, 0) + 1
            self._known[key] = found
        return self._known[key]

    def allocation(self, needs: Needs, node: str) -> dict[str, Any] | None:
        """All the needs on a node, as a claim's status has it; None where they are not free."""
        if self.unknown(needs):
            return None
        fleet = Fleet(self._slices, {node: {}}, self._classes, taken_by(self._claims))
        placed = fleet.place([read_claim(_claim(needs))], [node])
        return placed.allocations[0] if isinstance(placed, Placed) else None


def _claim(needs: Needs) -> dict[str, Any]:
    requests = [
        {
            "name": f"beside-{at}",
            "exactly": {
                "deviceClassName": need.device_class,
                "allocationMode": "ExactCount",
                "count": need.count,
                "selectors": [{"cel": {"expression": one}} for one in need.selectors],
            },
        }
        for at, need in enumerate(needs)
    ]
    return {"metadata": {"name": "beside"}, "spec": {"devices": {"requests": requests}}}


def host_claim(lease: Object, needs: Needs) -> dict[str, Any]:
    """The claim that holds what a lease has beside, as long as there is the lease."""
    name, agent = lease["metadata"]["name"], lease["spec"]["agent"]
    return {
        "apiVersion": RESOURCE_CLAIM.api_version,
        "kind": RESOURCE_CLAIM.kind,
        "metadata": {
            "name": claim_name(name),
            "namespace": host_namespace(agent),
            "labels": {labels.AGENT: agent, labels.LEASE: name},
            "ownerReferences": [owned_by(lease)],
        },
        "spec": _claim(needs)["spec"],
    }


def in_words(needs: Needs) -> str:
    return " and ".join(
        need.device_class if need.count == 1 else f"{need.count} × {need.device_class}"
        for need in needs
    )


def slices(
    lease: Object, claim: Object, host_slices: Iterable[Object], node: Object
) -> list[dict[str, Any]]:
    """What a lease has beside its GPUs, as its plane sees it. Goes with `node`."""
    allocation: Mapping[str, Any] = (claim.get("status") or {}).get("allocation") or {}
    wanted = {
        (one["driver"], one["pool"], one["device"])
        for one in (allocation.get("devices") or {}).get("results") or ()
    }
    found: dict[str, dict[str, Object]] = {}
    for one in sorted(host_slices, key=lambda slice_: str(slice_["metadata"]["name"])):
        driver, pool = one["spec"]["driver"], one["spec"]["pool"]["name"]
        for device in one["spec"].get("devices") or ():
            if (driver, pool, device["name"]) in wanted:
                known = found.setdefault(driver, {})
                # Two pools of a node may have a device of the same name.
                again = f"{device['name']}-{len(known)}"
                known[again if device["name"] in known else device["name"]] = device
    name = lease["metadata"]["name"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node["metadata"]["uid"]}
    return [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {
                "name": f"{name}-beside-{at}",
                "labels": {labels.LEASE: name},
                "ownerReferences": [owner],
            },
            "spec": {
                "driver": driver,
                "nodeName": name,
                "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
                "devices": [_shown(called, device) for called, device in sorted(known.items())],
            },
        }
        for at, (driver, known) in enumerate(sorted(found.items()))
    ]


def _shown(name: str, device: Object) -> dict[str, Any]:
    kept = {key: value for key, value in device.items() if key not in _OF_THE_HOST}
    return {**kept, "name": name}


# What it takes from the host's counters is taken; where it is, is the lease's node.
_OF_THE_HOST = ("consumesCounters", "nodeName", "nodeSelector", "allNodes")
