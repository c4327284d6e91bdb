"""The benchmarks run, say how, and put their aims where they belong."""

from __future__ import annotations

import pytest

from bidplane import bench
from bidplane.bench import ledger, traces
from bidplane.bench.report import more


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
    found = {
        name: traces._one(name, traces.generate(30, gpus=16, load=2.0, seed=1), (8, 8))
        for name in ("fifo", "las", "exchange")
    }
    results = traces._beside("t", traces._COMPLETION, found, "exchange", ("fifo", "las"))
    aimed = [result for result in results if result.aim]
    assert len(aimed) == 1
    assert aimed[0].peer == min(result.peer or 0 for result in results)
    assert (aimed[0].peer_name or "").endswith("(best)")


@pytest.mark.slow
def test_the_ledger_is_verified_after_its_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "SIZES", (20, 50))
    report = ledger.run(quick=True, data=None)
    assert report.results[0].metric == "SQLite: rounds of 20"
    assert all(result.ours > 0 and result.aim for result in report.results)
    assert len(report.results) == 4 or "PostgreSQL left out" in report.how
    assert more("x", "", 1.0).met
