"""
Idle services: the GPU hours that a policy holds, and the cold starts that it lets happen.

Each client of ServeGen and each pod of genai (with --data; else drawn ones) is a service with a GPU
of its own. Half of the clients choose our settings, the other half is reported. Ours is the window
that `ladder.auto` computes; its setting is what a cold start is worth, in seconds of rent.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from bidplane.bench.report import (
    BenchReport,
    Result,
    less,
    progress,
    ratio_above,
    ratio_at_least,
    say,
)
from bidplane.bench.support.idle_policies import (
    COLD_START_SECONDS,
    FixedWindow,
    HybridHistogram,
    IdlePolicy,
    Keeping,
    Outcome,
    offline_optimum,
    play,
)
from bidplane.bench.support.idle_uses import (
    LEAST_SECONDS,
    SERVICE_SECONDS,
    ServiceUses,
    generate,
    read_genai,
    read_servegen,
)
from bidplane.core.idling.windows import Arrivals, best_window

SEED = 1
WINDOWS = (300.0, 1800.0)
_MOST_SECONDS = 28_800.0
# Settings to choose from: what a cold start is worth, in seconds of rent.
_SETTINGS = tuple(150.0 * 2 ** (step / 8) for step in range(49))
_QUICK_SETTINGS = _SETTINGS[::4]
_COSTS = (150.0, 600.0, 2400.0)  # what a cold start costs, in seconds of rent
_NEVER = 1e9
_COST_AIM = 1.5


class ComputedWindow:
    """Ours: the window computed from the gaps so far."""

    def __init__(self, worth: float) -> None:
        self._worth, self._arrivals = worth, Arrivals()
        self._keeping: Keeping | None = None

    def decide(self) -> Keeping:
        if self._keeping is None:
            window = best_window(
                self._arrivals, self._worth, least=LEAST_SECONDS, most=_MOST_SECONDS
            )
            self._keeping = Keeping(window)
        return self._keeping

    def note(self, gap: float) -> None:
        self._arrivals.add(gap)
        self._keeping = None


class Workload(msgspec.Struct, frozen=True):
    """Clients in two halves."""

    name: str
    chosen_on: list[ServiceUses]
    reported: list[ServiceUses]


def run(*, quick: bool, data: Path | None) -> BenchReport:
    workloads = _workloads(quick, data)
    settings = _QUICK_SETTINGS if quick else _SETTINGS
    results = [result for workload in workloads for result in _results(workload, settings)]
    how = [
        *(
            f"{w.name}: {len(w.chosen_on)} clients to choose, {len(w.reported)} reported"
            for w in workloads
        ),
        f"a cold start takes {COLD_START_SECONDS:.0f} s, a request {SERVICE_SECONDS:.0f} s",
        f"arrivals and halves drawn from seed {SEED}",
        "waiting counts the request that a cold start is for",
        *(["quick: every third client, every fourth setting"] if quick else []),
    ]
    return BenchReport(name="idle", how="; ".join(how), results=tuple(results))


def _workloads(quick: bool, data: Path | None) -> list[Workload]:
    every = 3 if quick else 1
    sources: list[tuple[str, list[ServiceUses]]] = []
    if data is not None and (data / "servegen").is_dir():
        say("idle: drawing ServeGen's arrivals …")
        clients = read_servegen(data / "servegen", seed=SEED, every=every)
        sources.append(("ServeGen", clients))
    duty = sorted((data / "genai").glob("*duty*.csv.gz")) if data is not None else []
    sources.extend(("genai", read_genai(path)[::every]) for path in duty)
    if not sources:
        sources.append(("drawn", generate(20 if quick else 120, seed=SEED)))
    return [_halved(name, clients) for name, clients in sources]


def _halved(name: str, clients: Sequence[ServiceUses]) -> Workload:
    shuffled = list(clients)
    random.Random(SEED).shuffle(shuffled)
    return Workload(name, shuffled[::2], shuffled[1::2])


def _ours(worth: float) -> Callable[[], IdlePolicy]:
    return lambda: ComputedWindow(worth)


def _fixed(seconds: float) -> Callable[[], IdlePolicy]:
    return lambda: FixedWindow(seconds)


def _results(workload: Workload, settings: Sequence[float]) -> list[Result]:
    label = f"idle: {workload.name}, settings"
    tried = {
        worth: play(workload.chosen_on, _ours(worth))
        for worth in progress(label, settings, total=len(settings))
    }
    results = []
    for seconds in WINDOWS:
        results += _against_window(workload, seconds, tried)
    outcomes = {
        "never asleep": play(workload.reported, _fixed(_NEVER)),
        "hybrid histogram": play(workload.reported, HybridHistogram),
    }
    default = play(workload.reported, _ours(_COSTS[1]))
    for name, outcome in outcomes.items():
        results += _rows(
            f"{workload.name}, a start worth {_COSTS[1]:.0f} s", default, name, outcome
        )
    for worth in _COSTS:
        results += _costs(workload, worth, outcomes)
    return results


def _against_window(
    workload: Workload, seconds: float, tried: dict[float, Outcome]
) -> list[Result]:
    """Return our figures beside a window's, by the setting that was best on the other half."""
    window_outcome = play(workload.chosen_on, _fixed(seconds))
    enough = {
        worth: outcome
        for worth, outcome in tried.items()
        if outcome.cold_starts <= window_outcome.cold_starts
    }
    worth = min(enough or tried, key=lambda worth: tried[worth].gpu_hours)
    ours, peer = play(workload.reported, _ours(worth)), play(workload.reported, _fixed(seconds))
    title = f"{workload.name}, a start worth {worth:.0f} s"
    name = f"window of {seconds:.0f} s"
    return [
        less(
            f"{title}: GPU hours",
            "h",
            ours.gpu_hours,
            peer=peer.gpu_hours,
            peer_name=name,
            aim=ratio_above(1.0),
        ),
        less(
            f"{title}: cold starts",
            "count",
            ours.cold_starts,
            peer=peer.cold_starts,
            peer_name=name,
            aim=ratio_at_least(1.0),
        ),
        less(
            f"{title}: waiting",
            "h",
            ours.waiting_hours,
            peer=peer.waiting_hours,
            peer_name=name,
        ),
    ]


def _rows(title: str, ours: Outcome, name: str, peer: Outcome) -> list[Result]:
    return [
        less(f"{title}: GPU hours", "h", ours.gpu_hours, peer=peer.gpu_hours, peer_name=name),
        less(
            f"{title}: cold starts",
            "count",
            ours.cold_starts,
            peer=peer.cold_starts,
            peer_name=name,
        ),
    ]


def _costs(workload: Workload, worth: float, outcomes: dict[str, Outcome]) -> list[Result]:
    """Return the cost of idleness, where a cold start costs so many seconds of rent."""
    clients = workload.reported
    ours = play(clients, _ours(worth)).cost_hours(worth)
    optimum = offline_optimum(clients, worth).cost_hours(worth)
    title = f"{workload.name}, a start costs {worth:.0f} s: idle rent and starts"
    results = [
        less(
            title,
            "h",
            ours,
            peer=optimum,
            peer_name="offline optimum",
            aim=ratio_at_least(1 / _COST_AIM),
        )
    ]
    peers = {f"window of {seconds:.0f} s": play(clients, _fixed(seconds)) for seconds in WINDOWS}
    for name, outcome in {**peers, **outcomes}.items():
        results.append(less(title, "h", ours, peer=outcome.cost_hours(worth), peer_name=name))
    return results
