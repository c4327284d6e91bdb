"""
Counters of this machine's GPUs, from NVIDIA's driver (NVML).

A field the driver or the card does not support is None. Read in a thread: a GPU that has
fallen off its bus can hold a call for seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

import pynvml  # type: ignore[import-untyped]

from bidplane.errors import UserError
from bidplane.telemetry.model import Counters, ProcessMemory
from bidplane.telemetry.nvmltypes import (
    Handle,
    MemoryInfo,
    ProcessInfo,
    Text,
    UtilizationRates,
    text_of,
)

T = TypeVar("T")
_KIB = 1024


class NvmlCounters(Protocol):
    """The part of NVML that is used: `pynvml`, or a recording of it."""

    NVMLError: type[Exception]
    NVML_TEMPERATURE_GPU: int
    NVML_PCIE_UTIL_TX_BYTES: int
    NVML_PCIE_UTIL_RX_BYTES: int

    def nvmlInit(self) -> None: ...  # noqa: N802
    def nvmlShutdown(self) -> None: ...  # noqa: N802
    def nvmlDeviceGetCount(self) -> int: ...  # noqa: N802
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Handle: ...  # noqa: N802
    def nvmlDeviceGetUUID(self, handle: Handle) -> Text: ...  # noqa: N802
    def nvmlDeviceGetName(self, handle: Handle) -> Text: ...  # noqa: N802
    def nvmlDeviceGetUtilizationRates(self, handle: Handle) -> UtilizationRates: ...  # noqa: N802
    def nvmlDeviceGetMemoryInfo(self, handle: Handle) -> MemoryInfo: ...  # noqa: N802
    def nvmlDeviceGetPowerUsage(self, handle: Handle) -> int: ...  # noqa: N802
    def nvmlDeviceGetTemperature(self, handle: Handle, sensor: int) -> int: ...  # noqa: N802
    def nvmlDeviceGetPcieThroughput(self, handle: Handle, counter: int) -> int: ...  # noqa: N802
    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: Handle) -> int: ...  # noqa: N802
    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: Handle) -> int: ...  # noqa: N802
    def nvmlDeviceGetCurrPcieLinkGeneration(self, handle: Handle) -> int: ...  # noqa: N802
    def nvmlDeviceGetComputeRunningProcesses(self, handle: Handle) -> Sequence[ProcessInfo]: ...  # noqa: N802
    def nvmlDeviceGetMigMode(self, handle: Handle) -> Sequence[int]: ...  # noqa: N802
    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Handle) -> int: ...  # noqa: N802
    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Handle, index: int) -> Handle: ...  # noqa: N802
    def nvmlDeviceGetGpuInstanceId(self, handle: Handle) -> int: ...  # noqa: N802


class NvmlReader:
    """
    Reads the counters of this machine's GPUs; `node` names the machine.

    XIDs are events in NVML, not counters: a caller that listens for them passes the last of each
    GPU, by UUID; else they are None.
    """

    def __init__(
        self, node: str, *, xids: Mapping[str, int] | None = None, nvml: NvmlCounters | None = None
    ) -> None:
        self._node = node
        self._xids = xids
        self._nvml: NvmlCounters = nvml if nvml is not None else pynvml

    async def read(self) -> list[Counters]:
        return await asyncio.to_thread(self.read_now)

    def read_now(self) -> list[Counters]:
        """Read all GPUs, blocking."""
        nvml = self._nvml
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            raise UserError(f"this machine's GPUs cannot be read: {error}") from error
        try:
            return [
                counters
                for index in range(nvml.nvmlDeviceGetCount())
                for counters in self._counters(index)
            ]
        except nvml.NVMLError as error:
            raise UserError(f"this machine's GPUs cannot be read: {error}") from error
        finally:
            nvml.nvmlShutdown()

    def _counters(self, index: int) -> Iterator[Counters]:
        """Yield a GPU's counters, then those of its MIG instances."""
        handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
        gpu = self._device(index, handle)
        yield gpu
        mode = self._try(self._nvml.nvmlDeviceGetMigMode, handle)
        for number in range((mode and mode[0] and self._count(handle)) or 0):
            part = self._try(self._nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number)
            if part is not None:
                yield self._instance(gpu, part)

    def _count(self, handle: Handle) -> int:
        """The most MIG devices that a GPU can have."""
        return self._try(self._nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0

    def _instance(self, gpu: Counters, handle: Handle) -> Counters:
        """An instance's memory and processes; NVML reports no utilisation for one."""
        memory = self._try(self._nvml.nvmlDeviceGetMemoryInfo, handle)
        # "NVIDIA A100-SXM4-80GB MIG 1g.10gb"
        name = text_of(self._try(self._nvml.nvmlDeviceGetName, handle) or "")
        number = self._try(self._nvml.nvmlDeviceGetGpuInstanceId, handle)
        return Counters(
            node=gpu.node,
            index=gpu.index,
            uuid=gpu.uuid,
            product=gpu.product,
            profile=name.rpartition("MIG ")[2] if "MIG " in name else "",
            instance="" if number is None else str(number),
            memory_used_bytes=int(memory.used) if memory is not None else None,
            memory_free_bytes=int(memory.free) if memory is not None else None,
            xid=gpu.xid,
            processes=self._processes(handle),
        )

    def _processes(self, handle: Handle) -> tuple[ProcessMemory, ...]:
        return tuple(
            ProcessMemory(pid=process.pid, bytes=process.usedGpuMemory)
            for process in self._try(self._nvml.nvmlDeviceGetComputeRunningProcesses, handle) or ()
        )

    def _device(self, index: int, handle: Handle) -> Counters:
        """The counters of a whole GPU."""
        nvml = self._nvml
        uuid = text_of(nvml.nvmlDeviceGetUUID(handle))
        memory = self._try(nvml.nvmlDeviceGetMemoryInfo, handle)
        rates = self._try(nvml.nvmlDeviceGetUtilizationRates, handle)
        power = self._try(nvml.nvmlDeviceGetPowerUsage, handle)
        sent_rate = self._try(
            nvml.nvmlDeviceGetPcieThroughput, handle, nvml.NVML_PCIE_UTIL_TX_BYTES
        )
        received_rate = self._try(
            nvml.nvmlDeviceGetPcieThroughput, handle, nvml.NVML_PCIE_UTIL_RX_BYTES
        )
        return Counters(
            node=self._node,
            index=index,
            uuid=uuid,
            product=text_of(self._try(nvml.nvmlDeviceGetName, handle) or ""),
            utilisation_percent=float(rates.gpu) if rates is not None else None,
            memory_used_bytes=int(memory.used) if memory is not None else None,
            memory_free_bytes=int(memory.free) if memory is not None else None,
            power_watts=power / 1000 if power is not None else None,
            temperature_celsius=self._try(
                nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU
            ),
            pcie_tx_bytes_per_second=float(sent_rate * _KIB) if sent_rate is not None else None,
            pcie_rx_bytes_per_second=float(received_rate * _KIB)
            if received_rate is not None
            else None,
            pcie_link_width=self._try(nvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
            pcie_link_width_max=self._try(nvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
            pcie_link_generation=self._try(nvml.nvmlDeviceGetCurrPcieLinkGeneration, handle),
            xid=None if self._xids is None else self._xids.get(uuid, 0),
            processes=self._processes(handle),
        )

    def _try(self, query: Callable[..., T], *arguments: object) -> T | None:
        """The query's answer, or None if the card does not support it or is lost."""
        try:
            return query(*arguments)
        except self._nvml.NVMLError:
            return None  # not supported by this card, or lost
