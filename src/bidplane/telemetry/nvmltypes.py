"""The values of NVML that we read, which `pynvml` leaves without types."""

from __future__ import annotations

from typing import NewType, Protocol, TypeAlias

Handle = NewType("Handle", object)  # of a GPU, a MIG instance or a set of events
Text: TypeAlias = bytes | str  # as older and newer versions of pynvml return it


class MemoryInfo(Protocol):
    """The memory of a device, in bytes."""

    total: int
    used: int
    free: int


class UtilizationRates(Protocol):
    """The share of time that a device worked, in percent."""

    gpu: int


class ProcessInfo(Protocol):
    """A process on a device."""

    pid: int
    usedGpuMemory: int  # noqa: N815


class PciInfo(Protocol):
    """The place of a GPU on the PCIe bus."""

    busId: Text  # noqa: N815


class XidEvent(Protocol):
    """An error that the driver reports of a GPU."""

    eventData: int  # noqa: N815
    device: Handle


class ProfileInfo(Protocol):
    """A profile of MIG instances."""

    id: int
    name: Text
    sliceCount: int  # noqa: N815
    instanceCount: int  # noqa: N815


class Placement(Protocol):
    """The memory slices of a MIG instance."""

    start: int
    size: int


def text_of(value: Text) -> str:
    return value.decode() if isinstance(value, bytes) else value
