"""
This machine's GPUs, from NVIDIA's driver.

The PCIe root, and on older drivers the NUMA node, are read from sysfs. A value that the card does
not support is left out, not guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import pynvml  # type: ignore[import-untyped]

from bidplane.core.devices.topology import Gpu, Machine, links_text
from bidplane.errors import UserError
from bidplane.kube.client import Object
from bidplane.node.inventory.instances import NvmlInstances
from bidplane.node.inventory.slices import slices_of
from bidplane.telemetry.nvmltypes import Handle, MemoryInfo, PciInfo, Text, XidEvent, text_of

T = TypeVar("T")
SYSFS = Path("/sys/bus/pci/devices")

_ARCHITECTURES = {
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada Lovelace",
    9: "Hopper",
    10: "Blackwell",
    13: "Rubin",
}
_PROXIMITY = {10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_TO_GPU, _TO_SWITCH = 0, 2
_LONGEST_PRODUCT = 64  # an attribute's text
# Errors of the application, not of the card, which keeps working for others.
_HARMLESS_XIDS = frozenset({13, 31, 43, 45, 68, 109})


class NvmlInventory(Protocol):
    """The part of NVML that is used: `pynvml`, or a recording of it."""

    NVMLError: type[Exception]
    NVML_NVLINK_MAX_LINKS: int
    nvmlEventTypeXidCriticalError: int  # noqa: N815
    NVML_GPU_INSTANCE_PROFILE_COUNT: int  # and all that `NvmlInstances` uses

    def nvmlInit(self) -> None: ...  # noqa: N802
    def nvmlSystemGetDriverVersion(self) -> Text: ...  # noqa: N802
    def nvmlSystemGetCudaDriverVersion_v2(self) -> int: ...  # noqa: N802
    def nvmlDeviceGetCount(self) -> int: ...  # noqa: N802
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Handle: ...  # noqa: N802
    def nvmlDeviceGetUUID(self, handle: Handle) -> Text: ...  # noqa: N802
    def nvmlDeviceGetName(self, handle: Handle) -> Text: ...  # noqa: N802
    def nvmlDeviceGetMemoryInfo(self, handle: Handle) -> MemoryInfo: ...  # noqa: N802
    def nvmlDeviceGetArchitecture(self, handle: Handle) -> int: ...  # noqa: N802
    def nvmlDeviceGetCudaComputeCapability(self, handle: Handle) -> Sequence[int]: ...  # noqa: N802
    def nvmlDeviceGetPciInfo(self, handle: Handle) -> PciInfo: ...  # noqa: N802
    def nvmlDeviceGetNumaNodeId(self, handle: Handle) -> int: ...  # noqa: N802
    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: Handle) -> int: ...  # noqa: N802
    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: Handle) -> int: ...  # noqa: N802
    def nvmlDeviceGetCurrPcieLinkGeneration(self, handle: Handle) -> int: ...  # noqa: N802
    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: Handle) -> int: ...  # noqa: N802
    def nvmlDeviceGetNvLinkState(self, handle: Handle, link: int) -> int: ...  # noqa: N802
    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: Handle, link: int) -> int: ...  # noqa: N802
    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: Handle, link: int) -> PciInfo: ...  # noqa: N802
    def nvmlDeviceGetTopologyCommonAncestor(self, first: Handle, second: Handle) -> int: ...  # noqa: N802
    def nvmlDeviceGetMigMode(self, handle: Handle) -> Sequence[int]: ...  # noqa: N802
    def nvmlEventSetCreate(self) -> Handle: ...  # noqa: N802
    def nvmlDeviceRegisterEvents(self, handle: Handle, types: int, set: Handle) -> object: ...  # noqa: N802
    def nvmlEventSetWait_v2(self, set: Handle, milliseconds: int) -> XidEvent: ...  # noqa: N802


class NvmlDevices:
    """The inventory of this machine, named after its node; read anew each time."""

    def __init__(
        self,
        node: str,
        *,
        nvml: NvmlInventory | None = None,
        sysfs: Path = SYSFS,
        taint_degraded: bool = False,
    ) -> None:
        self._node = node
        self._nvml: NvmlInventory = nvml if nvml is not None else pynvml
        self._sysfs = sysfs
        self._taint_degraded = taint_degraded
        self._xids: dict[str, int] = {}  # by UUID, for as long as this process lives
        self._events: Handle | None = None
        self._instances = NvmlInstances(self._nvml)
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            raise UserError(
                f"this machine's GPUs cannot be read: {error}; declare them with --fleet"
            ) from error

    def slices(self) -> Sequence[Object]:
        return slices_of(self.machine(), taint_degraded=self._taint_degraded)

    def links(self) -> str:
        return links_text(self.machine())

    def xids(self) -> Mapping[str, int]:
        return self._xids

    def instances(self, folder: Path) -> NvmlInstances:
        return self._instances

    def machine(self) -> Machine:
        """Read the GPUs and their links."""
        nvml = self._nvml
        handles = [
            nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())
        ]
        self._watch_xids(handles)
        gpus = tuple(self._gpu(index, handle) for index, handle in enumerate(handles))
        cuda = self._try(nvml.nvmlSystemGetCudaDriverVersion_v2) or 0
        return Machine(
            name=self._node,
            gpus=gpus,
            nvlinks=self._nvlinks(handles, gpus),
            near=self._proximity(handles),
            driver=text_of(self._try(nvml.nvmlSystemGetDriverVersion) or ""),
            cuda=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "",
        )

    def _gpu(self, index: int, handle: Handle) -> Gpu:
        """The properties of one GPU."""
        nvml = self._nvml
        uuid = text_of(nvml.nvmlDeviceGetUUID(handle))
        bus = _bus(self._try(nvml.nvmlDeviceGetPciInfo, handle))
        compute = self._try(nvml.nvmlDeviceGetCudaComputeCapability, handle)
        mode = self._try(nvml.nvmlDeviceGetMigMode, handle)  # (now, after a reset)
        memory = self._try(nvml.nvmlDeviceGetMemoryInfo, handle)
        return Gpu(
            index=index,
            uuid=uuid,
            product=text_of(self._try(nvml.nvmlDeviceGetName, handle) or "")[:_LONGEST_PRODUCT],
            memory=int(memory.total) if memory is not None else 0,
            architecture=_ARCHITECTURES.get(
                self._try(nvml.nvmlDeviceGetArchitecture, handle) or 0, ""
            ),
            compute=".".join(map(str, compute)) if compute else "",
            bus=bus,
            root=self._root(bus),
            numa=self._numa(handle, bus),
            width=self._try(nvml.nvmlDeviceGetCurrPcieLinkWidth, handle) or 0,
            max_width=self._try(nvml.nvmlDeviceGetMaxPcieLinkWidth, handle) or 0,
            generation=self._try(nvml.nvmlDeviceGetCurrPcieLinkGeneration, handle) or 0,
            max_generation=self._try(nvml.nvmlDeviceGetMaxPcieLinkGeneration, handle) or 0,
            mig=mode is not None,
            mig_on=bool(mode and mode[0]),
            profiles=self._instances.profiles(uuid) if mode and mode[0] else {},
            xid=self._xids.get(uuid, 0),
        )

    # Position on the PCIe bus.

    def _root(self, bus: str) -> str:
        """
        The PCIe root: `/sys/bus/pci/devices/0000:3b:00.0` points into `/sys/devices/pci0000:3a/…`.
        """
        try:
            parts = (self._sysfs / bus).resolve(strict=True).parts if bus else ()
        except OSError:
            return ""
        return next((part for part in parts if part.startswith("pci") and ":" in part), "")

    def _numa(self, handle: Handle, bus: str) -> int:
        """The GPU's NUMA node; -1 if unknown."""
        node = self._try(self._nvml.nvmlDeviceGetNumaNodeId, handle)
        if node is not None:
            return node
        try:
            return int((self._sysfs / bus / "numa_node").read_text())
        except (OSError, ValueError):
            return -1

    # Links to other cards.

    def _nvlinks(
        self, handles: Sequence[Handle], gpus: Sequence[Gpu]
    ) -> dict[tuple[int, int], int]:
        """The number of NVLinks between each two cards; a switch joins all cards linked to it."""
        nvml = self._nvml
        by_bus = {gpu.bus: gpu.index for gpu in gpus}
        nvlinks: dict[tuple[int, int], int] = {}
        to_switch = [0] * len(handles)
        for index, handle in enumerate(handles):
            for link in range(nvml.NVML_NVLINK_MAX_LINKS):
                if not self._try(nvml.nvmlDeviceGetNvLinkState, handle, link):
                    continue
                kind = self._try(nvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
                if kind == _TO_SWITCH:
                    to_switch[index] += 1
                    continue
                remote = self._try(nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
                peer = by_bus.get(_bus(remote))
                if peer is not None and index < peer:
                    nvlinks[index, peer] = nvlinks.get((index, peer), 0) + 1
        for a, links in enumerate(to_switch):
            for b in range(a + 1, len(to_switch)):
                if links and to_switch[b]:
                    nvlinks[a, b] = min(links, to_switch[b])
        return nvlinks

    def _proximity(self, handles: Sequence[Handle]) -> dict[tuple[int, int], str]:
        """How close each two GPUs are on the PCIe tree, as `nvidia-smi topo` names it."""
        proximity = {}
        for a, handle in enumerate(handles):
            for b in range(a + 1, len(handles)):
                level = self._try(
                    self._nvml.nvmlDeviceGetTopologyCommonAncestor, handle, handles[b]
                )
                if level in _PROXIMITY:
                    proximity[a, b] = _PROXIMITY[level]
        return proximity

    # Errors: NVML reports them as events, each once.

    def _watch_xids(self, handles: Sequence[Handle]) -> None:
        """Record the XID errors reported since the last call."""
        nvml = self._nvml
        if self._events is None:
            self._events = self._try(nvml.nvmlEventSetCreate)
            for handle in handles:
                self._try(
                    nvml.nvmlDeviceRegisterEvents,
                    handle,
                    nvml.nvmlEventTypeXidCriticalError,
                    self._events,
                )
        while self._events is not None:
            event = self._try(nvml.nvmlEventSetWait_v2, self._events, 0)
            if event is None:
                return  # NVML reports a timeout as an error: there was no event
            xid = int(event.eventData)
            if xid and xid not in _HARMLESS_XIDS:
                self._xids[text_of(nvml.nvmlDeviceGetUUID(event.device))] = xid

    def _try(self, query: Callable[..., T], *arguments: object) -> T | None:
        """The query's answer, or None if the card does not support it."""
        try:
            return query(*arguments)
        except self._nvml.NVMLError:
            return None


def _bus(info: PciInfo | None) -> str:
    """The bus address `00000000:3B:00.0` as Linux and Kubernetes write it: `0000:3b:00.0`."""
    if info is None:
        return ""
    domain, _, rest = text_of(info.busId).lower().partition(":")
    return f"{domain[-4:]}:{rest}"
