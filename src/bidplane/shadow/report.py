"""The report of a recording: first what needs no model, then what the market would have done."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from bidplane.core.shadow.idle import DayUse, GpuHours, OwnerUse, use_by_day, use_by_owner
from bidplane.core.shadow.model import ClusterRecording, Gap
from bidplane.core.shadow.waiting import SizeWaiting, waiting_by_size
from bidplane.shadow.market import ModelComparison


class ListPrice(msgspec.Struct, frozen=True):
    """The price of a GPU-hour, as somebody named it."""

    per_hour: float
    currency: str

    def of(self, hours: float) -> str:
        return f"{hours * self.per_hour:,.0f} {self.currency}"


class ShadowReport(msgspec.Struct, frozen=True, kw_only=True):
    """The whole report; `--json` prints it."""

    source: str
    begin: float
    end: float
    nodes: int
    gpus: int
    pods: int
    never_scheduled: int  # left out of the simulation
    offered_hours: float
    hours: GpuHours
    idle_cost: float | None  # None: no price was named
    price: ListPrice | None
    owners: Sequence[OwnerUse]
    days: Sequence[DayUse]
    waits_known: bool
    waiting: Sequence[SizeWaiting]
    models: Sequence[ModelComparison]
    gaps: Sequence[Gap]


def report_of(
    recording: ClusterRecording,
    models: Sequence[ModelComparison],
    *,
    price: ListPrice | None,
) -> ShadowReport:
    owners = use_by_owner(recording)
    days = use_by_day(recording)
    hours = GpuHours()
    for owner in owners:
        hours = hours.plus(owner.hours)
    return ShadowReport(
        source=recording.source,
        begin=recording.begin,
        end=recording.end,
        nodes=len(recording.nodes),
        gpus=recording.gpus,
        pods=len(recording.pods),
        never_scheduled=sum(pod.scheduled is None for pod in recording.pods),
        offered_hours=sum(day.offered for day in days),
        hours=hours,
        idle_cost=None if price is None else hours.idle * price.per_hour,
        price=price,
        owners=owners,
        days=days,
        waits_known=recording.waits_known,
        waiting=waiting_by_size(recording) if recording.waits_known else (),
        models=models,
        gaps=recording.gaps,
    )
