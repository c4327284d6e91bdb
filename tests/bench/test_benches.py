"""The benchmarks run, say how, and put their aims where they belong."""

from __future__ import annotations

from pathlib import Path

import pytest

from bidplane import bench
from bidplane.bench import ledger, tracefigures, traces
from bidplane.bench.report import more
from bidplane.sim.metrics import SimulationMetrics


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_traces_on_drawn_work() -> None:
    report = bench.find("traces")(quick=True, data=None)
    assert "quick" in report.how
    by_aim = [result for result in report.results if result.aim]
    # One aim for each figure that has one: against the best peer, and against FGD.
    assert sum("completion" in r.metric for r in by_aim) == 2
    assert sum("value" in r.metric for r in by_aim if "delivered" in r.metric) == 1
    assert {r.peer_name for r in report.results} >= {"fifo", "FGD", "first fit"}


def test_the_aim_is_against_the_best_peer() -> None:
    setting = traces.TraceSetting("t", traces.generate(30, gpus=16, load=2.0, seed=1), (8, 8))
    metrics = {
        name: traces._simulate_one(name, setting, "equal") for name in ("fifo", "las", "exchange")
    }
    results = tracefigures.compare_with_peers(
        "t", tracefigures.EQUAL[:1], metrics, "exchange", ("fifo", "las")
    )
    aimed = [result for result in results if result.aim]
    assert len(aimed) == 1
    assert aimed[0].peer == min(result.peer or 0 for result in results)
    assert (aimed[0].peer_name or "").endswith("(best)")


def test_every_workload_of_a_folder_is_found_and_played_on_a_fleet_of_its_own(
    tmp_path: Path,
) -> None:
    for folder in ("jobs", "llm", "genai", "servegen/reason/r1"):
        (tmp_path / folder).mkdir(parents=True)
    header = "job_id,submit_time,num_gpus,duration\n"
    rows = "".join(f"{n},{60 * n},{1 + n % 4},600\n" for n in range(40))
    (tmp_path / "jobs" / "shockwave9.csv").write_text(header + rows)
    (tmp_path / "jobs" / "venus.csv").write_text(header + rows)
    (tmp_path / "llm" / "m.jsonl").write_text(
        '{"timestamp": 0, "input_length": 900000, "output_length": 5}\n'
    )
    (tmp_path / "genai" / "pod_duty.csv").write_text(
        "value,timestamp_anon,container_ip\n90,0,a\n90,60,a\n"
    )
    (tmp_path / "servegen/reason/r1" / "chunk-0-trace.csv").write_text("0,9.0,1,Gamma,1,1\n")
    settings = [*traces._training(False, tmp_path), *traces._serving(False, tmp_path)]
    assert [setting.name for setting in settings] == [
        "shockwave9",
        "venus",
        "m and training",
        "pod_duty and training",
        "r1 and training",
    ]
    assert settings[0].nodes == (4,) * 8
    assert [setting.serves for setting in settings] == [False, False, True, True, True]
    assert all(any(job.requests for job in s.jobs) == s.serves for s in settings)
    metrics = {
        ("m and training", "differ", n): _played(settings[2], n)
        for n in (*traces.VALUED, "exchange-worth")
    }
    results = traces._results(settings[2], metrics)
    assert {r.metric for r in results} >= {
        "m and training: urgent in time",
        "m and training: value delivered",
        "m and training: preemptions",
    }


def test_the_later_half_of_a_published_trace_is_played_on_three_fleets() -> None:
    jobs = traces.generate(40, gpus=16, load=2.0, seed=1)
    of_kinds = traces.TraceSetting("t", jobs, (4, 4, 4, 4, 8), (*"aaaab",), published=True)
    less, same, more_gpus = traces.later_halves(of_kinds)
    assert (same.nodes, same.kinds) == (of_kinds.nodes, of_kinds.kinds)
    assert (more_gpus.nodes, more_gpus.kinds) == ((4,) * 6 + (8, 8), (*"aaaaaabb",))
    assert (less.nodes, less.kinds) == ((4, 4, 4, 8), (*"aaab",))
    late = sorted(job.arrives for job in jobs)[20:]
    assert [job.arrives for job in same.jobs] == [at - late[0] for at in late]
    assert traces.later_halves(of_kinds._replace(published=False)) == []

    plain = same._replace(nodes=(8, 8), kinds=())
    metrics = {
        (plain.name, values, name): traces._simulate_one(name, plain, values)
        for values, name in traces._runs_of(plain)
    }
    results = traces._results(plain, metrics)
    aims = [(r.metric.rpartition(": ")[2], r.aim) for r in results if r.aim]
    assert aims == [
        ("average completion", "ratio ≥ 0.952381"),
        ("utilisation", "ratio ≥ 0.98"),
        ("value delivered", "ratio ≥ 1.05"),
    ]


def _played(setting: traces.TraceSetting, name: str) -> SimulationMetrics:
    few = setting._replace(jobs=[*setting.jobs[:3], *setting.jobs[-5:]])
    return traces._simulate_one(name, few, "differ")


def test_published_figures_stand_beside_ours() -> None:
    setting = traces.TraceSetting("t", traces.generate(10, gpus=16, load=1.0, seed=1), (8, 8))
    ours = traces._simulate_one("fifo", setting, "equal")
    for trace, peers in tracefigures.PUBLISHED.items():
        results = tracefigures.compare_with_published(trace, ours, peers)
        assert len(results) == sum(map(len, peers.values()))
        assert all(result.aim is None and result.peer is not None for result in results)


@pytest.mark.slow
def test_the_ledger_is_verified_after_its_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "SIZES", (20, 50))
    report = ledger.run(quick=True, data=None)
    assert report.results[0].metric == "SQLite: rounds of 20"
    assert all(result.ours > 0 and result.aim for result in report.results)
    assert len(report.results) == 4 or "PostgreSQL left out" in report.how
    assert more("x", "", 1.0).met
