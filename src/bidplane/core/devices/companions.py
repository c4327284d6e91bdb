"""
Devices without a price that a bid needs beside its GPUs, such as NICs.

They are no part of the market. Before a round they filter the machines: only those with enough of
them free can serve the bid. When the lease is published they are checked again, and the win is void
if they are gone. Both checks use this module with the slices and claims of that moment, so that no
bid is sent twice to a machine that lacks them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bidplane.api import labels
from bidplane.api.agent import host_namespace
from bidplane.api.bid import BidBeside
from bidplane.api.kinds import RESOURCE_CLAIM, Object
from bidplane.api.reading import GPULease
from bidplane.core.devices import bindingconditions
from bidplane.core.devices.claims import AllocatedDevices, read_claim, read_slices
from bidplane.core.devices.claims.fast import DeviceIndex, Placed
from bidplane.core.devices.claims.model import allocated_by
from bidplane.core.hosting.translation import owned_by
from bidplane.core.market.lots import facts

Needs = tuple[BidBeside, ...]

# Drivers that sell GPUs, whatever else they publish; so does any driver whose devices name a
# product.
_SELLERS = frozenset(labels.GPU_CLASSES)


def claim_name(lease: str) -> str:
    """Return the name of the host's claim for the unpriced devices of a lease."""
    return f"{lease}-beside"


def unpriced(slices: Iterable[Object]) -> list[Object]:
    """
    Return the slices of devices in one node that have no price.

    The devices of a driver that publishes GPUs, or parts of them, are never unpriced: they have a
    price, or their owner has not set one yet.
    """
    slices = [slice_ for slice_ in slices if slice_.get("spec")]
    sellers = _SELLERS | {
        slice_["spec"]["driver"]
        for slice_ in slices
        if any(
            labels.PRODUCT_ATTRIBUTE in (device.get("attributes") or {})
            for device in slice_["spec"].get("devices") or ()
        )
    }
    return [
        {
            **slice_,
            "spec": {
                **slice_["spec"],
                "devices": _exclusive_devices(slice_["spec"].get("devices")),
            },
        }
        for slice_ in slices
        if slice_["spec"]["driver"] not in sellers and slice_["spec"].get("nodeName")
    ]


def _exclusive_devices(devices: Sequence[Object] | None) -> list[Object]:
    """
    Leave out devices that several claims share and devices that need binding conditions.

    An agent would see all of a shared device, and its plane never learns that one is prepared.
    """
    unsupported = ("allowMultipleAllocations", *bindingconditions.FIELDS)
    return [device for device in devices or () if not any(map(device.get, unsupported))]


class Unpriced:
    """The unpriced devices of machines, and how many of them are free."""

    def __init__(
        self,
        slices: Iterable[Object] = (),
        claims: Iterable[Object] = (),
        classes: Iterable[Object] = (),
    ) -> None:
        """
        Read the host's slices, claims and device classes; a device without a class is not offered.
        """
        published = list(unpriced(slices))
        self._slices = read_slices(published)
        self._facts: frozenset[bytes] | None = None
        self._published = published
        self._claims = list(claims) if self._slices else []
        self._classes = {
            str(device_class["metadata"]["name"]): device_class for device_class in classes
        }
        self._known: dict[tuple[Needs, int, bool], dict[str, int]] = {}

    @property
    def facts(self) -> frozenset[bytes]:
        """Each distinct device as a selector sees it."""
        if self._facts is None:
            self._facts = frozenset(
                facts(item["spec"]["driver"], device)
                for item in self._published
                for device in item["spec"].get("devices") or ()
            )
        return self._facts

    def unknown(self, needs: Needs) -> list[str]:
        """Return the classes that the host does not have."""
        return sorted({need.device_class for need in needs} - self._classes.keys())

    def sets(self, needs: Needs, most: int = 1, *, whoever_has_it: bool = False) -> dict[str, int]:
        """
        Return, by node, how many times up to `most` all the needs fit the free devices there.

        With `whoever_has_it`, allocated devices count as free. Raises `ClaimError`.
        """
        key = needs, most, whoever_has_it
        if self.unknown(needs):
            return {}
        if key not in self._known:
            allocated = AllocatedDevices() if whoever_has_it else allocated_by(self._claims)
            nodes = sorted({slice_.scope.node for slice_ in self._slices if slice_.scope.node})
            fleet = DeviceIndex(
                self._slices, {node: {} for node in nodes}, self._classes, allocated
            )
            claim = read_claim(_claim_for(needs))
            counts: dict[str, int] = {}
            for node in nodes:
                while counts.get(node, 0) < most and isinstance(
                    fleet.place([claim], [node]), Placed
                ):
                    counts[node] = counts.get(node, 0) + 1
            self._known[key] = counts
        return self._known[key]

    def allocation(self, needs: Needs, node: str) -> dict[str, Any] | None:
        """Return an allocation of all the needs on a node; None if they are not free there."""
        if self.unknown(needs):
            return None
        fleet = DeviceIndex(self._slices, {node: {}}, self._classes, allocated_by(self._claims))
        placed = fleet.place([read_claim(_claim_for(needs))], [node])
        return placed.allocations[0] if isinstance(placed, Placed) else None


def _claim_for(needs: Needs) -> dict[str, Any]:
    """Return a claim for all the needs."""
    requests = [
        {
            "name": f"beside-{at}",
            "exactly": {
                "deviceClassName": need.device_class,
                "allocationMode": "ExactCount",
                "count": need.count,
                "selectors": [{"cel": {"expression": selector}} for selector in need.selectors],
            },
        }
        for at, need in enumerate(needs)
    ]
    return {"metadata": {"name": "beside"}, "spec": {"devices": {"requests": requests}}}


def host_claim(lease: GPULease, needs: Needs) -> dict[str, Any]:
    """Return the host's claim that reserves a lease's unpriced devices while the lease exists."""
    name, agent = lease.name, lease.spec.agent
    return {
        "apiVersion": RESOURCE_CLAIM.api_version,
        "kind": RESOURCE_CLAIM.kind,
        "metadata": {
            "name": claim_name(name),
            "namespace": host_namespace(agent),
            "labels": {labels.AGENT: agent, labels.LEASE: name},
            "ownerReferences": [owned_by(lease)],
        },
        "spec": _claim_for(needs)["spec"],
    }


def in_words(needs: Needs) -> str:
    """Describe the needs in words, such as "2 × nic.example.com"."""
    return " and ".join(
        need.device_class if need.count == 1 else f"{need.count} × {need.device_class}"
        for need in needs
    )


def slices(
    lease: str, claim: Object, host_slices: Iterable[Object], node: Object
) -> list[dict[str, Any]]:
    """
    Return the ResourceSlices that show the unpriced devices of the lease of that name in its plane,
    owned by `node`.
    """
    allocation: Mapping[str, Any] = (claim.get("status") or {}).get("allocation") or {}
    allocated = {
        (result["driver"], result["pool"], result["device"])
        for result in (allocation.get("devices") or {}).get("results") or ()
    }
    by_driver: dict[str, dict[str, Object]] = {}
    for slice_ in sorted(host_slices, key=lambda slice_: str(slice_["metadata"]["name"])):
        driver, pool = slice_["spec"]["driver"], slice_["spec"]["pool"]["name"]
        for device in slice_["spec"].get("devices") or ():
            if (driver, pool, device["name"]) in allocated:
                devices = by_driver.setdefault(driver, {})
                # Two pools of a node may have a device of the same name.
                unique_name = f"{device['name']}-{len(devices)}"
                devices[unique_name if device["name"] in devices else device["name"]] = device
    owner = {"apiVersion": "v1", "kind": "Node", "name": lease, "uid": node["metadata"]["uid"]}
    return [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {
                "name": f"{lease}-beside-{at}",
                "labels": {labels.LEASE: lease},
                "ownerReferences": [owner],
            },
            "spec": {
                "driver": driver,
                "nodeName": lease,
                "pool": {"name": lease, "generation": 1, "resourceSliceCount": 1},
                "devices": [
                    _plane_device(device_name, device)
                    for device_name, device in sorted(devices.items())
                ],
            },
        }
        for at, (driver, devices) in enumerate(sorted(by_driver.items()))
    ]


def _plane_device(name: str, device: Object) -> dict[str, Any]:
    """Return a device as a lease's plane sees it, under `name`."""
    fields = {key: value for key, value in device.items() if key not in _OF_THE_HOST}
    return {**fields, "name": name}


# These describe the device's place in the host; in the plane it is on the lease's node.
_OF_THE_HOST = ("consumesCounters", "nodeName", "nodeSelector", "allNodes")
