"""The report as one HTML page, with plots in SVG and nothing to fetch."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from bidplane.shadow.market import HAPPENED, ModelComparison
from bidplane.shadow.report import ShadowReport
from bidplane.shadow.text import duration, lines_of, moment, shortened

_BUSY, _IDLE, _UNMEASURED, _UNHELD = "#2a7de1", "#e1812a", "#9aa5b1", "#e4e8ec"
_COLOURS = {HAPPENED: "#9aa5b1", "fifo": "#c5ccd3", "backfill": "#7f8a95", "market": "#2a7de1"}
_WIDTH, _HEIGHT, _LABEL = 640, 180, 300
_BAR = 18
_MOST_BARS = 20
_LONGEST_LABEL = 42  # characters
_STYLE = (
    "body{font:14px sans-serif;margin:2em;max-width:70em}td,th{padding:.2em .8em;text-align:left}"
    "td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}pre{background:#f6f8fa;"
    "padding:1em;overflow:auto}"
)


def page(report: ShadowReport) -> str:
    """Return the page."""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>Shadow report</title>",
        f"<style>{_STYLE}</style><h1>{escape(report.source)}</h1>",
        f"<p>{moment(report.begin)} to {moment(report.end)} UTC;"
        f" {report.pods} pods with GPUs; {report.gpus} GPUs on {report.nodes} nodes</p>",
        "<h2>GPU-hours by day</h2>",
        _days(report),
        "<h2>Idle GPU-hours by owner</h2>",
        _owners(report),
        "<h2>Waiting by number of GPUs</h2>",
        _waiting(report),
    ]
    for comparison in report.models:
        parts += [
            f"<h2>The same pods, if: {escape(comparison.model)}</h2>",
            f"<p>{escape(comparison.statement)}</p>",
            _model(comparison),
        ]
    if report.gaps:
        parts.append("<h2>Missing</h2><ul>")
        parts += [f"<li>{escape(gap.source)}: {escape(gap.cost)}</li>" for gap in report.gaps]
        parts.append("</ul>")
    text = "\n".join(lines_of(report, most_owners=len(report.owners)))
    parts.append(f"<h2>As text</h2><pre>{escape(text)}</pre></html>\n")
    return "\n".join(parts)


def _days(report: ShadowReport) -> str:
    """The days as stacked bars."""
    most = max((max(d.offered, d.hours.allocated) for d in report.days), default=0.0) or 1.0
    step = _WIDTH / max(1, len(report.days))
    parts = [_svg(_WIDTH + 170, _HEIGHT + 24)]
    for number, day in enumerate(report.days):
        unheld = max(0.0, day.offered - day.hours.allocated)
        top = float(_HEIGHT)
        for name, colour, amount in (
            ("busy", _BUSY, day.hours.busy),
            ("idle", _IDLE, day.hours.idle),
            ("held, not measured", _UNMEASURED, day.hours.unmeasured),
            ("held by nobody", _UNHELD, unheld),
        ):
            height = _HEIGHT * amount / most
            top -= height
            parts.append(
                _bar(
                    number * step + 1,
                    top,
                    max(1.0, step - 2),
                    height,
                    colour,
                    f"{moment(day.begin)[:10]}, {name}: {amount:,.1f}",
                )
            )
        if number % (len(report.days) // 10 + 1) == 0:
            parts.append(_text(number * step + 2, _HEIGHT + 15, moment(day.begin)[5:10]))
    legend = (
        ("busy", _BUSY),
        ("idle", _IDLE),
        ("held, not measured", _UNMEASURED),
        ("held by nobody", _UNHELD),
    )
    for number, (name, colour) in enumerate(legend):
        y = 14 + 18 * number
        parts += [_bar(_WIDTH + 12, y - 10, 11, 11, colour, name), _text(_WIDTH + 30, y, name)]
    return "\n".join([*parts, "</svg>"])


def _owners(report: ShadowReport) -> str:
    rows = [
        (
            shortened(f"{owner.namespace}/{owner.owner}", _LONGEST_LABEL),
            owner.hours.idle,
            f"{owner.hours.idle:,.1f} of {owner.hours.allocated:,.1f} h"
            + (f", {report.price.of(owner.hours.idle)}" if report.price else "")
            + (f", idle since {moment(owner.idle_since)}" if owner.idle_since else ""),
        )
        for owner in report.owners
        if owner.hours.idle > 0
    ]
    if not rows:
        return "<p>none was measured</p>"
    return _bars([(*row, _IDLE) for row in rows[:_MOST_BARS]])


def _waiting(report: ShadowReport) -> str:
    if not report.waits_known:
        return "<p>unknown; see what is missing</p>"
    return _bars(
        [
            (
                f"{row.size} GPUs, {row.scheduled} pods",
                row.average,
                f"{duration(row.average)} on average; p90 {duration(row.p90)};"
                f" {row.pending} pending",
                _BUSY,
            )
            for row in report.waiting
        ]
    )


def _model(comparison: ModelComparison) -> str:
    """Average waits by size and policy, then the other figures as a table."""
    sizes = sorted({size for f in comparison.figures for size in f.waits}, key=_first_number)
    rows = [
        (
            f"{size} GPUs: {figures.policy}",
            figures.waits.get(size, 0.0),
            f"{duration(figures.waits.get(size, 0.0))} on average",
            _COLOURS.get(figures.policy, _UNMEASURED),
        )
        for size in sizes
        for figures in comparison.figures
    ]
    table = "".join(
        f"<tr><td>{escape(f.policy)}</td><td class=n>{duration(f.average_wait)}</td>"
        f"<td class=n>{duration(f.p99_wait)}</td><td class=n>{100 * f.value_share:.1f}</td>"
        f"<td class=n>{'-' if f.urgent_in_time is None else f'{100 * f.urgent_in_time:.1f}'}</td>"
        f"<td class=n>{f.stops}</td></tr>"
        for f in comparison.figures
    )
    head = "<tr><th></th>" + "".join(
        f"<th class=n>{name}</th>"
        for name in ("average wait", "p99 wait", "worth, %", "urgent in time, %", "stops")
    )
    return f"{_bars(rows)}\n<table>{head}</tr>{table}</table>"


def _bars(rows: Sequence[tuple[str, float, str, str]]) -> str:
    """Horizontal bars: name, length, text, colour."""
    most = max((value for _, value, _, _ in rows), default=0.0) or 1.0
    width = _WIDTH - _LABEL
    parts = [_svg(_WIDTH + 400, len(rows) * (_BAR + 6) + 6)]
    for number, (name, value, text, colour) in enumerate(rows):
        y = 4 + number * (_BAR + 6)
        length = width * value / most
        parts += [
            f'<text x="{_LABEL - 6}" y="{y + 13}" text-anchor="end">{escape(name)}</text>',
            _bar(_LABEL, y, length, _BAR, colour, text),
            _text(_LABEL + length + 6, y + 13, text),
        ]
    return "\n".join([*parts, "</svg>"])


def _first_number(size: str) -> int:
    return int(size.partition("-")[0].rstrip("+"))


def _svg(width: float, height: float) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}"'
        ' font-family="sans-serif" font-size="12">'
    )


def _bar(x: float, y: float, width: float, height: float, colour: str, title: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
        f' fill="{colour}"><title>{escape(title)}</title></rect>'
    )


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'
