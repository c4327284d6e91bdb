"""
One device's counters, whatever their source.

A value that a source does not report is None, never zero: an idle GPU and an unmeasured one
differ.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class ProcessMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The device memory that one process uses."""

    pid: int
    bytes: int | None = None  # unknown where the driver hides other users' processes


class HolderProcess(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A process of a container that holds a device: its use of the machine's CPU and memory."""

    pid: int
    memory_bytes: int
    cpu_seconds: float  # since it began


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """The pod that uses a device, as the source names it."""

    namespace: str
    pod: str
    container: str = ""


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """The counters of one device at one time."""

    node: str
    index: int  # the device's number on its node
    uuid: str
    product: str = ""
    # Of a MIG instance, which has the UUID of its GPU: its profile, and its number there.
    profile: str = ""
    instance: str = ""
    engine_percent: float | None = None  # of the time, in which any of its engines worked
    utilisation_percent: float | None = None
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    power_watts: float | None = None
    temperature_celsius: float | None = None
    pcie_tx_bytes_per_second: float | None = None
    pcie_rx_bytes_per_second: float | None = None
    pcie_link_width: int | None = None
    pcie_link_width_max: int | None = None
    pcie_link_generation: int | None = None
    xid: int | None = None  # the last error the driver reported; 0 is none
    declared: bool = False  # its owner declares it; nothing measures it
    holder: Holder | None = None
    holder_processes: tuple[HolderProcess, ...] = ()
    processes: tuple[ProcessMemory, ...] = ()

    @property
    def memory_total_bytes(self) -> int | None:
        if self.memory_used_bytes is None or self.memory_free_bytes is None:
            return None
        return self.memory_used_bytes + self.memory_free_bytes

    @property
    def link_is_degraded(self) -> bool:
        """True if the link is trained below what card and slot support."""
        width, most = self.pcie_link_width, self.pcie_link_width_max
        return width is not None and most is not None and width < most


def used_bytes(counters: Iterable[Counters]) -> dict[str, int]:
    """Return the memory in use on each whole GPU that is measured, by UUID."""
    return {
        counter.uuid: counter.memory_used_bytes
        for counter in counters
        if not counter.instance and counter.memory_used_bytes is not None
    }
