"""The report as lines for a terminal, 80 columns wide."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from bidplane.core.shadow.idle import OwnerUse
from bidplane.shadow.market import ModelComparison
from bidplane.shadow.report import ListPrice, ShadowReport

WIDTH = 80
_NAME = 34
_MOST_OWNERS = 15


def lines_of(report: ShadowReport, *, most_owners: int = _MOST_OWNERS) -> Iterator[str]:
    """Yield the lines of the report."""
    yield from facts_of(report, most_owners=most_owners)
    yield from results_of(report)


def facts_of(report: ShadowReport, *, most_owners: int = _MOST_OWNERS) -> Iterator[str]:
    """Yield the lines for which nothing is simulated."""
    yield from _wrapped(f"{report.source}, {moment(report.begin)} to {moment(report.end)}")
    yield from _wrapped(f"{report.pods} pods with GPUs; {report.gpus} GPUs on {report.nodes} nodes")
    yield ""
    yield from _totals(report)
    yield from _owners(report, most_owners)
    yield from _waiting(report)


def results_of(report: ShadowReport) -> Iterator[str]:
    """Yield the lines about the simulator, and what is missing."""
    if report.models:
        yield ""
        yield "THE SAME PODS IN THE SIMULATOR"
        yield from _wrapped(_omitted(report))
    for comparison in report.models:
        yield from _model(comparison)
    if report.gaps:
        yield ""
        yield "MISSING"
    for gap in report.gaps:
        yield from _wrapped(f"{gap.source}: {gap.cost}")


def moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def duration(seconds: float) -> str:
    """Return a length of time in the unit that fits it."""
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= (2 if unit == "d" else 1) * length:
            return f"{seconds / length:.1f}{unit}"
    return f"{seconds:.0f}s"


def _totals(report: ShadowReport) -> Iterator[str]:
    hours = report.hours
    unheld = max(0.0, report.offered_hours - hours.allocated)
    yield "GPU-HOURS"
    rows = [
        ("held by pods, and busy", hours.busy),
        ("held by pods, and idle", hours.idle),
        ("held by pods, not measured", hours.unmeasured),
        ("held by nobody", unheld),
    ]
    for name, amount in rows:
        share = f"{100 * amount / report.offered_hours:6.1f} %" if report.offered_hours else ""
        yield f"  {name:28}{amount:12,.1f}{share:>10}"
    if report.price is not None:
        cost = report.price.of(hours.idle)
        yield f"  idle, at {report.price.per_hour:.2f} {report.price.currency} a GPU-hour: {cost}"


def _owners(report: ShadowReport, most: int) -> Iterator[str]:
    yield ""
    yield "IDLE GPU-HOURS BY OWNER"
    idlers = [owner for owner in report.owners if owner.hours.idle > 0]
    if not idlers:
        yield from _wrapped("none was measured")
        return
    cost = f"{'cost':>11}" if report.price else ""
    yield f"  {'owner':{_NAME}}{'idle':>9}{'held':>10}{cost}  idle since"
    for owner in idlers[:most]:
        yield _owner_row(owner, report.price)
    if rest := idlers[most:]:
        idle = sum(owner.hours.idle for owner in rest)
        yield f"  {f'{len(rest)} others':{_NAME}}{idle:9,.1f}"


def _owner_row(owner: OwnerUse, price: ListPrice | None) -> str:
    cost = f"{owner.hours.idle * price.per_hour:11,.0f}" if price else ""
    since = "-" if owner.idle_since is None else moment(owner.idle_since)[5:]
    name = shortened(f"{owner.namespace}/{owner.owner}", _NAME)
    return f"  {name:{_NAME}}{owner.hours.idle:9,.1f}{owner.hours.allocated:10,.1f}{cost}  {since}"


def _waiting(report: ShadowReport) -> Iterator[str]:
    yield ""
    yield "WAITING, FROM CREATION TO SCHEDULING"
    if not report.waits_known:
        yield from _wrapped("unknown; see what is missing")
        return
    yield (
        f"  {'GPUs':6}{'pods':>7}{'average':>10}{'median':>9}{'p90':>9}{'longest':>10}"
        f"{'pending':>10}{'gave up':>10}"
    )
    for row in report.waiting:
        yield (
            f"  {row.size:6}{row.scheduled:7}{duration(row.average):>10}{duration(row.median):>9}"
            f"{duration(row.p90):>9}{duration(row.longest):>10}{row.pending:10}{row.gave_up:10}"
        )


def _omitted(report: ShadowReport) -> str:
    text = (
        "Each pod is a job, and all GPUs are alike. A namespace's batch pods bid as one agent, each"
        " service as an agent of its own; an agent does not displace itself."
    )
    if report.never_scheduled:
        count = report.never_scheduled
        text += f" {count} pods that were never scheduled are left out."
    return text


def _model(comparison: ModelComparison) -> Iterator[str]:
    yield ""
    yield from _wrapped(f"{comparison.model}: {comparison.statement}")
    yield f"  {'':12}{'avg wait':>10}{'p99 wait':>10}{'worth %':>9}{'in time %':>11}{'stops':>8}"
    for figures in comparison.figures:
        urgent = figures.urgent_in_time
        in_time = "-" if urgent is None else f"{100 * urgent:.1f}"
        yield (
            f"  {figures.policy:12}{duration(figures.average_wait):>10}"
            f"{duration(figures.p99_wait):>10}{100 * figures.value_share:9.1f}{in_time:>11}"
            f"{figures.stops:8}"
        )


def _wrapped(text: str) -> Sequence[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def shortened(text: str, length: int) -> str:
    """Return the text, without its middle if it is too long."""
    if len(text) <= length:
        return text
    begin = (length - 1) // 2
    return f"{text[:begin]}…{text[len(text) - (length - 1 - begin) :]}"
