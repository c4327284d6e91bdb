"""
The report of a benchmark: how it was measured, and each figure beside its peer's.

    from bidplane.bench.report import BenchReport, at_most, less, more, ratio_at_least

    less("clear 10k bids", "ms", 14.2, aim=at_most(20))
    more("value", "credits", 91.0, peer=80.0, peer_name="FIFO", aim=ratio_at_least(1.0))

A ratio above 1 means that we are better, whichever way the metric points.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

import msgspec
from rich.console import Console
from rich.table import Table

T = TypeVar("T")


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of a benchmark."""

    metric: str
    unit: str
    ours: float
    peer: float | None = None
    peer_name: str | None = None
    ratio: float | None = None  # above 1: ours is better; None without a peer
    aim: str | None = None
    met: bool = True  # also where there is no aim


class BenchReport(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a benchmark."""

    name: str
    how: str  # what was measured on what, and what --quick shrank
    results: tuple[Result, ...]

    @property
    def is_met(self) -> bool:
        return all(result.met for result in self.results)


class Aim(NamedTuple):
    """A target for a figure."""

    text: str
    holds: Callable[[float, float | None], bool]  # called with our figure and the ratio


def at_most(limit: float) -> Aim:
    return Aim(f"≤ {limit:g}", lambda ours, _: ours <= limit)


def at_least(limit: float) -> Aim:
    return Aim(f"≥ {limit:g}", lambda ours, _: ours >= limit)


def ratio_at_least(limit: float) -> Aim:
    return Aim(f"ratio ≥ {limit:g}", lambda _, ratio: ratio is not None and ratio >= limit)


def ratio_above(limit: float) -> Aim:
    return Aim(f"ratio > {limit:g}", lambda _, ratio: ratio is not None and ratio > limit)


def more(
    metric: str,
    unit: str,
    ours: float,
    *,
    peer: float | None = None,
    peer_name: str | None = None,
    aim: Aim | None = None,
) -> Result:
    """A figure of which more is better."""
    ratio = None if peer is None else _quotient(ours, peer)
    return _result(metric, unit, ours, peer, peer_name, ratio, aim)


def less(
    metric: str,
    unit: str,
    ours: float,
    *,
    peer: float | None = None,
    peer_name: str | None = None,
    aim: Aim | None = None,
) -> Result:
    """A figure of which less is better."""
    ratio = None if peer is None else _quotient(peer, ours)
    return _result(metric, unit, ours, peer, peer_name, ratio, aim)


def _quotient(numerator: float, denominator: float) -> float | None:
    if denominator:
        return numerator / denominator
    return 1.0 if numerator == denominator else None  # JSON has no infinity


def _result(
    metric: str,
    unit: str,
    ours: float,
    peer: float | None,
    peer_name: str | None,
    ratio: float | None,
    aim: Aim | None,
) -> Result:
    if not math.isfinite(ours):
        raise ValueError(f"{metric}: {ours} is not a figure")
    # A division by zero gives no ratio: ours is infinitely better, and the aim is met.
    unbounded = peer is not None and ratio is None
    met = aim is None or aim.holds(ours, math.inf if unbounded else ratio)
    return Result(
        metric=metric,
        unit=unit,
        ours=ours,
        peer=peer,
        peer_name=peer_name,
        ratio=ratio,
        aim=aim.text if aim else None,
        met=met,
    )


def print_report(report: BenchReport, console: Console) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("metric", "unit", "ours", "peer", "", "ratio", "aim", ""):
        right = column in ("ours", "peer", "ratio")
        table.add_column(column, justify="right" if right else "left")
    for result in report.results:
        table.add_row(
            result.metric,
            result.unit,
            _figure(result.ours),
            _figure(result.peer),
            result.peer_name or "",
            "" if result.ratio is None else f"{result.ratio:.3f}",
            result.aim or "",
            "" if result.aim is None else "met" if result.met else "[red]missed[/red]",
        )
    console.print(f"[bold]{report.name}[/bold]  {report.how}")
    console.print(table)


def _figure(value: float | None) -> str:
    """Format a figure for the table: four digits below 100, whole above; "" for none."""
    if value is None:
        return ""
    if value and abs(value) < 100:
        return f"{value:.4g}"
    return f"{value:,.0f}"


def progress(label: str, items: Iterable[T], *, total: int | None = None) -> Iterator[T]:
    """
    Yield `items`; print progress on standard error every two seconds.

    Standard output stays the report's own.
    """
    began = reported_at = time.monotonic()
    for number, item in enumerate(items, start=1):
        now = time.monotonic()
        if now - reported_at >= 2.0:
            reported_at = now
            total_text = f" of {total}" if total else ""
            print(
                f"{label}: {number}{total_text}, {now - began:.0f} s", file=sys.stderr, flush=True
            )
        yield item


def say(line: str) -> None:
    """Print one line of progress on standard error."""
    print(line, file=sys.stderr, flush=True)
