"""Measurements of devices, step by step, joined into stretches of busy and idle time."""

from __future__ import annotations

from typing import NamedTuple

from bidplane.core.shadow.model import DeviceUse, UseStretch


class MeasuredDevice(NamedTuple):
    """A device under a pod's name."""

    namespace: str
    pod: str
    device: str


class StretchRecorder:
    """
    Joins neighbouring steps of one state, so that weeks of steps take little memory.

    A device is idle in a step if it was never busier in it than `below` percent. A step that was
    not measured belongs to no stretch: unknown is not idle.
    """

    def __init__(self, *, step: int, below: float) -> None:
        self._step, self._below = step, below
        self._stretches: dict[MeasuredDevice, list[UseStretch]] = {}

    def __repr__(self) -> str:
        count = sum(map(len, self._stretches.values()))
        return f"<StretchRecorder {len(self._stretches)} devices, {count} stretches>"

    def add(self, device: MeasuredDevice, end: float, busiest_percent: float) -> None:
        """Add the step that ends at `end`. The steps of a device come in the order of time."""
        idle, begin = busiest_percent <= self._below, end - self._step
        stretches = self._stretches.setdefault(device, [])
        if stretches and stretches[-1].end > begin:
            return  # a step that was read twice
        if stretches and stretches[-1].end == begin and stretches[-1].idle == idle:
            begin = stretches.pop().begin
        stretches.append(UseStretch(begin, end, idle))

    def uses(self) -> list[DeviceUse]:
        return [
            DeviceUse(namespace=d.namespace, pod=d.pod, device=d.device, stretches=tuple(stretches))
            for d, stretches in sorted(self._stretches.items())
        ]
