"""
The devices of a node, as the ResourceSlices it should publish: declared ones, and real ones
(`nvml`). `partitions` and `instances` create and destroy MIG instances for pods, `claimstatus`
tells a claim of them. May touch the driver of this machine's GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from bidplane.api.objects import Fields
from bidplane.core.devices import mig
from bidplane.core.devices.topology import links_text
from bidplane.errors import UserError
from bidplane.kube.client import Object
from bidplane.node.fleet import NodeDeclaration, machine_of
from bidplane.node.inventory.instances import Instances, SimulatedInstances
from bidplane.node.inventory.slices import slices_of


class Inventory(Protocol):
    """A source of a node's devices."""

    def slices(self) -> Sequence[Object]:
        """The node's present ResourceSlices; read again from time to time."""

    def links(self) -> str:
        """The links between its devices, for the node's annotation; "" if there are none."""

    def instances(self, folder: Path) -> Instances | None:
        """
        The MIG instances of its GPUs, or None without MIG; `folder` is for state that must survive
        a restart.
        """

    def xids(self) -> Mapping[str, int]:
        """The last XID error of each GPU that had one, by UUID."""


class NoDevices:
    """The inventory of a node without devices."""

    def slices(self) -> Sequence[Object]:
        return ()

    def xids(self) -> Mapping[str, int]:
        return {}

    def links(self) -> str:
        return ""

    def instances(self, folder: Path) -> Instances | None:
        return None


class DeclaredDevices:
    """The devices that a fleet file declares for one node."""

    def __init__(self, node: NodeDeclaration) -> None:
        self._node = node

    def slices(self) -> Sequence[Object]:
        return slices_of(machine_of(self._node), taint_degraded=self._node.taint_degraded)

    def links(self) -> str:
        return links_text(machine_of(self._node))

    def xids(self) -> Mapping[str, int]:
        return {}

    def instances(self, folder: Path | None) -> SimulatedInstances | None:
        """Simulated MIG instances, kept in a file."""
        machine = machine_of(self._node)
        if not self._node.mig:
            return None
        card = mig.gigabytes(machine.gpus[0].memory)
        file = folder / "cards.json" if folder is not None else None
        return SimulatedInstances([gpu.uuid for gpu in machine.gpus], card, file)


def this_machine(node: str) -> Inventory:
    """The GPUs of this machine; none without NVIDIA's driver."""
    from bidplane.node.inventory.nvml import NvmlDevices

    try:
        return NvmlDevices(node)
    except UserError:
        return NoDevices()


def uuids(slices: Sequence[Object]) -> dict[tuple[str, str, str], str]:
    """
    The UUID by which programs know each device, by (driver, pool, device); its name if it has
    none.
    """
    uuids_by_device: dict[tuple[str, str, str], str] = {}
    for slice_ in slices:
        spec = slice_["spec"]
        for device in spec.get("devices") or ():
            attributes: Fields = device.get("attributes") or {}
            attribute = attributes.get("uuid") or attributes.get(f"{spec['driver']}/uuid") or {}
            key = spec["driver"], spec["pool"]["name"], device["name"]
            uuids_by_device[key] = attribute.get("string") or device["name"]
    return uuids_by_device
