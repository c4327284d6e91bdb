"""The benchmark of idle services: its traces, its referees, and what it compares."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidplane import bench
from bidplane.bench import idle
from bidplane.bench.support.idle_policies import (
    FixedWindow,
    HybridHistogram,
    IdlePolicy,
    offline_optimum,
    play,
)
from bidplane.bench.support.idle_uses import ServiceUses, read_genai, read_servegen


def client(gaps: list[float]) -> ServiceUses:
    uses, now = [(0.0, 10.0)], 10.0
    for gap in gaps:
        uses.append((now + gap, now + gap + 10))
        now += gap + 10
    return ServiceUses("c", uses, now)


gaps = st.lists(st.floats(30, 30_000), max_size=30)


@given(st.lists(gaps, min_size=1, max_size=3), st.floats(60, 5000))
def test_nothing_costs_less_than_the_optimum(lengths: list[list[float]], worth: float) -> None:
    clients = [client(gaps) for gaps in lengths]
    least = offline_optimum(clients, worth).cost_hours(worth)
    policies: list[Callable[[], IdlePolicy]] = [
        lambda: FixedWindow(300),
        lambda: FixedWindow(1e9),
        lambda: idle.ComputedWindow(worth),
    ]
    for policy in policies:
        assert play(clients, policy).cost_hours(worth) >= least - 1e-9


def test_a_window_keeps_gaps_as_long_as_itself() -> None:
    outcome = play([client([100, 300, 301])], lambda: FixedWindow(300))
    assert (outcome.cold_starts, outcome.idle_seconds) == (2, 700)
    assert outcome.gpu_hours == pytest.approx((40 + 700 + 2 * 60) / 3600)
    assert play([client([100, 300, 301])], lambda: FixedWindow(1e9)).cold_starts == 1


def test_the_hybrid_histogram_lets_go_and_starts_again_before_a_regular_use() -> None:
    outcome = play([client([3000.0] * 50)], HybridHistogram)
    assert outcome.early_starts > 40
    assert outcome.cold_starts <= 2
    kept = play([client([3000.0] * 50)], lambda: FixedWindow(3600))
    assert outcome.gpu_hours < kept.gpu_hours


def test_traces_are_read_and_drawn_from_their_seed(tmp_path: Path) -> None:
    folder = tmp_path / "servegen" / "language" / "m"
    folder.mkdir(parents=True)
    rows = (
        "0,0.01,1,Gamma,1,1\n600,0,0,,0,0\n1200,2.0,3,Weibull,0.4,1\n1800,0.005,2,Weibull,0.6,1\n"
    )
    (folder / "chunk-0-trace.csv").write_text(rows)
    (folder / "chunk-1-trace.csv").write_text("0,0,0,,0,0\n")
    clients = read_servegen(tmp_path / "servegen", seed=1)
    assert [len(c.uses) > 0 for c in clients] == [True, False]
    assert clients[0].end == 2400
    busy = [use for use in clients[0].uses if use[0] <= 1200 and use[1] >= 1800]
    assert len(busy) == 1, "two requests a second: busy throughout"
    assert read_servegen(tmp_path / "servegen", seed=1) == clients
    assert read_servegen(tmp_path / "servegen", seed=2) != clients
    duty = "value,timestamp_anon,container_ip\n9,0,a\n0,60,a\n0,120,a\n9,180,a\n0,240,a\n"
    with gzip.open(tmp_path / "pod_duty.csv.gz", "wt") as file:
        file.write(duty)
    (pod,) = read_genai(tmp_path / "pod_duty.csv.gz")
    assert pod.uses == [(0, 60), (180, 240)]
    assert (pod.gaps, pod.rest) == ([120], 60)


@pytest.mark.slow
def test_it_reports_the_half_that_did_not_choose() -> None:
    report = bench.find("idle")(quick=True, data=None)
    assert "quick" in report.how
    aims = [result for result in report.results if result.aim]
    assert {result.peer_name for result in aims} == {
        "window of 300 s",
        "window of 1800 s",
        "offline optimum",
    }
    assert {r.peer_name for r in report.results} >= {"hybrid histogram", "never asleep"}
    workload = idle._halved("w", [client([n]) for n in range(9)])
    assert (len(workload.chosen_on), len(workload.reported)) == (5, 4)
