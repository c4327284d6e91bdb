"""A bar chart as SVG."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from bidplane.sim.metrics import SimulationMetrics

_WIDTH, _BAR, _GAP, _LABEL, _TITLE = 300, 16, 6, 110, 34
_OURS, _OTHERS = "#2a7de1", "#9aa5b1"

PANELS: tuple[tuple[str, Callable[[SimulationMetrics], float]], ...] = (
    ("average completion, h", lambda m: m.average_completion / 3600),
    ("p99 completion, h", lambda m: m.p99_completion / 3600),
    ("average queueing, h", lambda m: m.average_queueing / 3600),
    ("utilisation, %", lambda m: 100 * m.utilisation),
    ("value delivered, %", lambda m: 100 * m.value_share),
    ("urgent in time, %", lambda m: 100 * m.urgent_in_time),
    ("wasted GPU-hours", lambda m: m.wasted),
    ("preemptions", lambda m: float(m.preemptions)),
    ("makespan, h", lambda m: m.makespan / 3600),
    ("unfairly late, %", lambda m: 100 * m.unfair),
)


def compare(results: Sequence[SimulationMetrics], *, columns: int = 2) -> str:
    """One panel per metric, one bar per policy, on a scale from zero."""
    height = _TITLE + len(results) * (_BAR + _GAP) + _GAP
    width = _LABEL + _WIDTH + 80
    rows = -(-len(PANELS) // columns)
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg"'
        f' width="{columns * width}" height="{rows * height}"'
        ' font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for number, (title, value) in enumerate(PANELS):
        row, column = divmod(number, columns)
        bars = [(m.policy, value(m)) for m in results]
        parts.append(f'<g transform="translate({column * width},{row * height})">')
        parts += _panel(title, bars)
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


def _panel(title: str, bars: Sequence[tuple[str, float]]) -> list[str]:
    """The SVG of one panel."""
    most = max((value for _, value in bars), default=0.0) or 1.0
    lines = [f'<text x="8" y="20" font-weight="bold">{escape(title)}</text>']
    for number, (name, value) in enumerate(bars):
        y = _TITLE + number * (_BAR + _GAP)
        length = round(_WIDTH * value / most, 1)
        colour = _OURS if name.startswith("exchange") else _OTHERS
        lines += [
            f'<text x="{_LABEL - 6}" y="{y + 12}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{_LABEL}" y="{y}" width="{length}" height="{_BAR}" fill="{colour}"/>',
            f'<text x="{_LABEL + length + 5}" y="{y + 12}">{value:,.4g}</text>',
        ]
    return lines
