"""The plane's benchmark measures what it says; without a peer it says so."""

import pytest

from bidplane.bench import plane
from bidplane.bench.plane import PlaneSize


@pytest.mark.slow
def test_a_small_run_without_a_peer(monkeypatch):
    small = PlaneSize(planes=3, seconds=0.2, watchers=3, objects=16, wakes=1)
    monkeypatch.setattr(plane, "PlaneSize", lambda *_: small)
    monkeypatch.setattr(plane, "_peer", lambda size: (None, None))
    report = plane.run(quick=True, data=None)
    assert "no peer" in report.how
    assert "--quick" in report.how
    by_metric = {result.metric: result for result in report.results}
    assert by_metric["planes made"].ours > 0
    assert by_metric["writes, 8 clients"].ours > 0
    assert by_metric["writes, 8 clients, p50"].ours <= by_metric["writes, 8 clients, p99"].ours
    assert by_metric["events to 3 watchers"].ours > 0
    assert by_metric["list of 16"].ours > 0
    assert by_metric["cold wake, p50"].ours > 0
    assert all(result.peer is None for result in report.results)
