"""
GPU-hours that were held, and those in which the GPU did nothing, by owner and by day.

A pod holds its GPUs from its scheduling until its end, whatever they do. Of that, what was measured
is busy or idle, and the rest is unmeasured.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from bidplane.core.shadow.model import ClusterRecording, DeviceUse, ShadowPod

_HOUR = 3600.0
_DAY = 86_400
_STILL_STEPS = 2  # the last measurement may be missing


class GpuHours(msgspec.Struct, frozen=True, kw_only=True):
    """Hours of GPUs that pods held."""

    allocated: float = 0.0
    busy: float = 0.0
    idle: float = 0.0

    @property
    def unmeasured(self) -> float:
        return max(0.0, self.allocated - self.busy - self.idle)

    def plus(self, other: GpuHours) -> GpuHours:
        return GpuHours(
            allocated=self.allocated + other.allocated,
            busy=self.busy + other.busy,
            idle=self.idle + other.idle,
        )


class OwnerUse(msgspec.Struct, frozen=True, kw_only=True):
    """The GPU-hours of one owner's pods."""

    namespace: str
    owner: str
    pods: int
    hours: GpuHours
    idle_now: int = 0  # GPUs that are idle when the window ends
    idle_since: float | None = None  # the longest of these; None: none is


class DayUse(msgspec.Struct, frozen=True, kw_only=True):
    """The GPU-hours of one day (UTC), and those that nodes offered in it."""

    begin: float
    offered: float
    hours: GpuHours


class _Held(NamedTuple):
    """The time in which a pod held its GPUs, within the window."""

    pod: ShadowPod
    begin: float
    end: float


def use_by_owner(recording: ClusterRecording) -> list[OwnerUse]:
    """Return each owner's GPU-hours, the most idle first."""
    uses = _uses_by_pod(recording)
    owners: dict[tuple[str, str], OwnerUse] = {}
    for span in _held_spans(recording):
        pod = span.pod
        key = (pod.namespace, pod.owner)
        owner = owners.get(key) or OwnerUse(
            namespace=pod.namespace, owner=pod.owner, pods=0, hours=GpuHours()
        )
        devices = uses.get((pod.namespace, pod.name), ())
        idle_begins = list(_idle_now(span, devices, recording))
        begins = idle_begins + ([] if owner.idle_since is None else [owner.idle_since])
        owners[key] = OwnerUse(
            namespace=pod.namespace,
            owner=pod.owner,
            pods=owner.pods + 1,
            hours=owner.hours.plus(_hours(span, devices, span.begin, span.end)),
            idle_now=owner.idle_now + len(idle_begins),
            idle_since=min(begins, default=None),
        )
    return sorted(
        owners.values(), key=lambda o: (-o.hours.idle, -o.hours.allocated, o.namespace, o.owner)
    )


def use_by_day(recording: ClusterRecording) -> list[DayUse]:
    """Return the GPU-hours of each day of the window."""
    uses = _uses_by_pod(recording)
    first = recording.begin - recording.begin % _DAY
    days: dict[float, GpuHours] = {}
    moment = first
    while moment < recording.end:
        days[moment] = GpuHours()
        moment += _DAY
    for span in _held_spans(recording):
        devices = uses.get((span.pod.namespace, span.pod.name), ())
        moment = span.begin - span.begin % _DAY
        while moment < span.end:
            begin, end = max(moment, span.begin), min(moment + _DAY, span.end)
            days[moment] = days[moment].plus(_hours(span, devices, begin, end))
            moment += _DAY
    return [
        DayUse(
            begin=day,
            offered=recording.gpus
            * (min(day + _DAY, recording.end) - max(day, recording.begin))
            / _HOUR,
            hours=hours,
        )
        for day, hours in days.items()
    ]


def _uses_by_pod(
    recording: ClusterRecording,
) -> Mapping[tuple[str, str], Sequence[DeviceUse]]:
    uses: dict[tuple[str, str], list[DeviceUse]] = {}
    for use in recording.uses:
        uses.setdefault((use.namespace, use.pod), []).append(use)
    return uses


def _held_spans(recording: ClusterRecording) -> Iterator[_Held]:
    """Yield the time in which each pod held GPUs, cut to the window."""
    for pod in recording.pods:
        if pod.scheduled is None:
            continue
        begin = max(pod.scheduled, recording.begin)
        end = min(recording.end if pod.ended is None else pod.ended, recording.end)
        if begin < end:
            yield _Held(pod, begin, end)


def _hours(span: _Held, devices: Sequence[DeviceUse], begin: float, end: float) -> GpuHours:
    """
    Return what a pod held from `begin` to `end`. Where more devices were measured than it asked
    for, as while one replaced another, no more count than it held.
    """
    idle = busy = 0.0
    for device in devices:
        # A name may be used by one pod after another, for weeks: begin where this one does.
        index = max(0, bisect_right(device.stretches, begin, key=lambda s: s.begin) - 1)
        for stretch in device.stretches[index:]:
            if stretch.begin >= end:
                break
            seconds = max(0.0, min(stretch.end, end) - max(stretch.begin, begin))
            idle, busy = idle + seconds * stretch.idle, busy + seconds * (not stretch.idle)
    allocated = span.pod.gpus * (end - begin)
    busy = min(busy, allocated)
    return GpuHours(
        allocated=allocated / _HOUR, busy=busy / _HOUR, idle=min(idle, allocated - busy) / _HOUR
    )


def _idle_now(
    span: _Held, devices: Sequence[DeviceUse], recording: ClusterRecording
) -> Iterator[float]:
    """Yield since when each device is idle that a running pod holds, and that is idle now."""
    if span.pod.ended is not None and span.pod.ended < recording.end:
        return
    for device in devices:
        last = device.stretches[-1]
        is_recent = last.end >= recording.end - _STILL_STEPS * recording.step
        if last.idle and is_recent and last.end > span.begin:
            yield max(last.begin, span.begin)
