"""What devices a node has, as the ResourceSlices it should publish."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from bidplane.core import mig
from bidplane.core.topology import links_text
from bidplane.errors import UserError
from bidplane.kube.client import Object
from bidplane.node.fleet import NodeDeclaration, machine_of
from bidplane.node.inventory.instances import Instances, SimulatedInstances
from bidplane.node.inventory.slices import slices_of


class Inventory(Protocol):
    def slices(self) -> Sequence[Object]:
        """All of the node's ResourceSlices as they are now; read again from time to time."""

    def links(self) -> str:
        """How its devices are joined, for the node's annotation; empty if there is none."""

    def instances(self, folder: Path) -> Instances | None:
        """Who cuts its cards, if they can be; `folder` is for what must be remembered."""

    def xids(self) -> Mapping[str, int]:
        """By UUID, the last error of a GPU that had one."""


class NoDevices:
    def slices(self) -> Sequence[Object]:
        return ()

    def xids(self) -> Mapping[str, int]:
        return {}

    def links(self) -> str:
        return ""

    def instances(self, folder: Path) -> Instances | None:
        return None


class DeclaredDevices:
    """What a fleet file says of one node."""

    def __init__(self, node: NodeDeclaration) -> None:
        self._node = node

    def slices(self) -> Sequence[Object]:
        return slices_of(machine_of(self._node), taint_degraded=self._node.taint_degraded)

    def links(self) -> str:
        return links_text(machine_of(self._node))

    def xids(self) -> Mapping[str, int]:
        return {}

    def instances(self, folder: Path | None) -> SimulatedInstances | None:
        """The cards are not here: which instances they have is a file."""
        machine = machine_of(self._node)
        if not self._node.mig:
            return None
        card = mig.gigabytes(machine.gpus[0].memory)
        file = folder / "cards.json" if folder is not None else None
        return SimulatedInstances([gpu.uuid for gpu in machine.gpus], card, file)


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
