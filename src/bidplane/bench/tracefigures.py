"""The figures of a simulated run that are shown, their peers, and their aims."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from bidplane.bench.report import Aim, Result, less, more, ratio_above, ratio_at_least
from bidplane.sim.metrics import SimulationMetrics

CLEARLY = 1.05


class Figure(NamedTuple):
    """One metric: how it is read, whether more is better, and the aim against the best peer."""

    name: str
    unit: str
    read: Callable[[SimulationMetrics], float]
    is_more: bool = False
    aim: Aim | None = None


COMPLETION = Figure("average completion", "s", lambda m: m.average_completion)
UTILISATION = Figure("utilisation", "share", lambda m: m.utilisation, True)
VALUE = Figure("value delivered", "share", lambda m: m.value_share, True)
URGENT = Figure("urgent in time", "share", lambda m: m.urgent_in_time, True)
OTHERS = (
    Figure("p99 completion", "s", lambda m: m.p99_completion),
    Figure("average queueing", "s", lambda m: m.average_queueing),
    Figure("p99 queueing", "s", lambda m: m.p99_queueing),
    Figure("makespan", "s", lambda m: float(m.makespan)),
    Figure("GPUs at work while jobs arrive", "share", lambda m: m.busy_utilisation, True),
    Figure("worst finish-time fairness", "ratio", lambda m: m.worst_fairness),
    Figure("unfairly late jobs", "share", lambda m: m.unfair),
    Figure("wasted", "GPU-hours", lambda m: m.wasted),
    Figure("preemptions", "count", lambda m: float(m.preemptions)),
)
EQUAL = (
    COMPLETION._replace(aim=ratio_at_least(1.0)),
    UTILISATION._replace(aim=ratio_above(1.0)),
    *OTHERS,
)
# Without durations the peer to beat is Tiresias.
BLIND = (COMPLETION, UTILISATION, *OTHERS)
WORTH = (VALUE._replace(aim=ratio_at_least(CLEARLY)), URGENT, UTILISATION, COMPLETION, *OTHERS)
# Of the later half of a trace, against SRTF's average and the best queue's utilisation and value.
HALF_TIME = (COMPLETION._replace(aim=ratio_at_least(1 / 1.05)),)
HALF_USE = (UTILISATION._replace(aim=ratio_at_least(0.98)),)
HALF_VALUE = (VALUE._replace(aim=ratio_at_least(CLEARLY)),)
SERVICES = (URGENT, VALUE, UTILISATION, COMPLETION, *OTHERS)


def compare_with_peers(
    title: str,
    figures: Sequence[Figure],
    metrics_by_policy: Mapping[str, SimulationMetrics],
    ours: str,
    peers: Sequence[str],
) -> list[Result]:
    """Our figures beside each peer's of the same run; the aim is set against the best of them."""
    results = []
    for figure in figures:
        values = {name: figure.read(metrics_by_policy[name]) for name in peers}
        best = (max if figure.is_more else min)(values, key=lambda name: values[name])
        for name, value in values.items():
            is_best = name == best
            results.append(
                _result(
                    title,
                    figure if is_best else figure._replace(aim=None),
                    figure.read(metrics_by_policy[ours]),
                    value,
                    f"{name} (best)" if is_best else name,
                )
            )
    return results


def compare_with_published(
    title: str, ours: SimulationMetrics, published: Mapping[str, Mapping[str, float]]
) -> list[Result]:
    """
    Our figures beside those that other simulators gave for the same jobs under nearly the same
    rules.
    """
    figures_by_name = {figure.name: figure for figure in (COMPLETION, UTILISATION, *OTHERS)}
    return [
        _result(title, figures_by_name[name], figures_by_name[name].read(ours), value, peer)
        for peer, figures in published.items()
        for name, value in figures.items()
    ]


def _result(title: str, figure: Figure, ours: float, peer: float, peer_name: str) -> Result:
    make_result = more if figure.is_more else less
    metric = f"{title}: {figure.name}"
    return make_result(metric, figure.unit, ours, peer=peer, peer_name=peer_name, aim=figure.aim)


def _row(*values: float) -> dict[str, float]:
    """The published figures of a Shockwave run."""
    names = (
        "makespan",
        "average completion",
        "p99 completion",
        "worst finish-time fairness",
        "unfairly late jobs",
        "utilisation",
    )
    return dict(zip(names, values, strict=True))


def _philly(
    average: float, p99: float, queue: float, makespan: float, stops: float
) -> dict[str, float]:
    """The published figures of a Philly run."""
    return {
        "average completion": average,
        "p99 completion": p99,
        "average queueing": queue,
        "makespan": makespan,
        "preemptions": stops,
    }


# The results of the peers' own simulators. Shockwave's is its authors' figure; we ran the others.
PUBLISHED: dict[str, dict[str, dict[str, float]]] = {
    "philly_w1106": {
        "SRTF (Lucid's simulator)": _philly(12_166, 231_984, 2_162, 1_586_035, 7_580),
        "Tiresias (Lucid's simulator)": _philly(20_303, 367_962, 10_325, 1_543_511, 3_416),
        "FIFO (Lucid's simulator)": _philly(137_809, 350_458, 127_854, 1_564_417, 0),
    },
    "shockwave120": {
        "Gavel max-min (Shockwave's simulator)": _row(33_208, 11_274, 28_405, 2.95, 0.250, 0.595),
        "Themis (Shockwave's simulator)": _row(32_329, 11_386, 27_645, 3.05, 0.233, 0.611),
        "AlloX (Shockwave's simulator)": _row(32_629, 9_973, 22_382, 4.96, 0.275, 0.605),
        "Gandiva-fair (Shockwave's simulator)": _row(32_367, 12_574, 28_086, 1.85, 0.517, 0.610),
        "Shockwave (its authors)": _row(24_197, 9_958, 22_827, 1.78, 0.050, 0.817),
    },
    "gavel96_hetero": {
        "LAS (Gavel's simulator)": {"average completion": 13_766},
        "Themis (Gavel's simulator)": {"average completion": 14_170},
        "Gandiva (Gavel's simulator)": {"average completion": 17_129},
        "FIFO (Gavel's simulator)": {"average completion": 35_450},
    },
}
