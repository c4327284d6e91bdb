"""What devices a node has, as the ResourceSlices it should publish."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from bidplane.errors import UserError
from bidplane.kube.client import Object
from bidplane.node.fleet import NodeDeclaration, machine_of
from bidplane.node.inventory.slices import slices_of


class Inventory(Protocol):
    def slices(self) -> Sequence[Object]:
        """All of the node's ResourceSlices as they are now; read again from time to time."""


class NoDevices:
    def slices(self) -> Sequence[Object]:
        return ()


class DeclaredDevices:
    """What a fleet file says of one node."""

    def __init__(self, node: NodeDeclaration) -> None:
        self._node = node

    def slices(self) -> Sequence[Object]:
        return slices_of(machine_of(self._node), taint_degraded=self._node.taint_degraded)


def this_machine(node: str) -> Inventory:
    """The GPUs of this machine; none where NVIDIA's driver is not."""
    from bidplane.node.inventory.nvml import NvmlDevices

    try:
        return NvmlDevices(node)
    except UserError:
        return NoDevices()


def uuids(slices: Sequence[Object]) -> dict[tuple[str, str, str], str]:
    """(driver, pool, device) → the UUID by which programs know it, or its name without one."""
    found: dict[tuple[str, str, str], str] = {}
    for slice_ in slices:
        spec = slice_["spec"]
        for device in spec.get("devices") or ():
            attributes: dict[str, Any] = device.get("attributes") or {}
            named = attributes.get("uuid") or attributes.get(f"{spec['driver']}/uuid") or {}
            key = spec["driver"], spec["pool"]["name"], device["name"]
            found[key] = named.get("string") or device["name"]
    return found
