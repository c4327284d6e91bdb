"""The time between the creation and the scheduling of pods, by the number of their GPUs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from bidplane.core.shadow.model import ClusterRecording

# The largest size of each class, and its name.
SIZES: tuple[tuple[float, str], ...] = (
    (1, "1"),
    (2, "2"),
    (4, "3-4"),
    (8, "5-8"),
    (math.inf, "9+"),
)


class SizeWaiting(msgspec.Struct, frozen=True, kw_only=True):
    """The waits of pods of one size, in seconds."""

    size: str
    scheduled: int  # pods that were scheduled in the window
    average: float = 0.0
    median: float = 0.0
    p90: float = 0.0
    longest: float = 0.0
    pending: int = 0  # pods that wait when the window ends
    oldest_pending: float = 0.0  # seconds that the oldest of them has waited
    gave_up: int = 0  # pods that ended before they were scheduled


def size_class(gpus: int) -> str:
    return next(name for largest, name in SIZES if gpus <= largest)


def waiting_by_size(recording: ClusterRecording) -> list[SizeWaiting]:
    """Return the waits of each size that occurs, the smallest first."""
    waits: dict[str, list[float]] = {name: [] for _, name in SIZES}
    pending: dict[str, list[float]] = {name: [] for _, name in SIZES}
    gave_up = dict.fromkeys(waits, 0)
    for pod in recording.pods:
        size = size_class(pod.gpus)
        if pod.scheduled is None:
            if pod.ended is None:
                pending[size].append(recording.end - pod.created)
            else:
                gave_up[size] += 1
        elif recording.begin <= pod.scheduled < recording.end:
            waits[size].append(max(0.0, pod.scheduled - pod.created))
    return [
        SizeWaiting(
            size=name,
            scheduled=len(waits[name]),
            average=average(waits[name]),
            median=quantile(waits[name], 0.5),
            p90=quantile(waits[name], 0.9),
            longest=max(waits[name], default=0.0),
            pending=len(pending[name]),
            oldest_pending=max(pending[name], default=0.0),
            gave_up=gave_up[name],
        )
        for _, name in SIZES
        if waits[name] or pending[name] or gave_up[name]
    ]


def average(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def quantile(values: Iterable[float], share: float) -> float:
    """Return the smallest value that is not below the given share of all values; 0 of none."""
    ordered = sorted(values)
    if not ordered:
        return 0.0
    return ordered[min(len(ordered), max(1, math.ceil(share * len(ordered)))) - 1]
