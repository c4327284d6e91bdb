"""The report: what it says, how it is shown, and its recording replayed by the simulator."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidplane.core.shadow.model import (
    ClusterRecording,
    DeviceUse,
    Gap,
    NodeGpus,
    ShadowPod,
    UseStretch,
)
from bidplane.core.shadow.waiting import waiting_by_size
from bidplane.errors import UserError
from bidplane.shadow import text
from bidplane.shadow.market import MODELS, ModelComparison, compare_models
from bidplane.shadow.page import page
from bidplane.shadow.report import ListPrice, ShadowReport, report_of
from bidplane.sim.traces import read
from bidplane.sim.traces.recorded import nodes_for, recorded_jobs

HOUR = 3600
BEGIN = 1_790_000_000
EVIL = "<script>alert('x')</script>"


def shadow_pod(
    name: str,
    gpus: int = 1,
    *,
    created: int,
    scheduled: int | None,
    ended: int | None = None,
    owner: str = "Job/train",
) -> ShadowPod:
    return ShadowPod(
        namespace="ns",
        name=name,
        owner=owner,
        gpus=gpus,
        created=BEGIN + created,
        scheduled=None if scheduled is None else BEGIN + scheduled,
        ended=None if ended is None else BEGIN + ended,
    )


def recording(*pods: ShadowPod, nodes: tuple[int, ...] = (4,)) -> ClusterRecording:
    return ClusterRecording(
        source="test",
        begin=BEGIN,
        end=BEGIN + 24 * HOUR,
        step=300,
        nodes=[NodeGpus(f"n{i}", size) for i, size in enumerate(nodes)],
        pods=pods,
    )


# One long pod in the way of short ones, and a service that came late.
CROWDED = recording(
    shadow_pod("long", 4, created=0, scheduled=0, ended=10 * HOUR),
    *[shadow_pod(f"s{i}", created=HOUR, scheduled=10 * HOUR, ended=11 * HOUR) for i in range(3)],
    shadow_pod("web", created=2 * HOUR, scheduled=10 * HOUR, owner="Deployment/web"),
    shadow_pod("never", 8, created=3 * HOUR, scheduled=None),
)


@pytest.fixture(scope="module")
def comparisons() -> list[ModelComparison]:
    return compare_models(CROWDED)


def test_what_happened_is_beside_what_the_market_does(comparisons: list[ModelComparison]) -> None:
    assert [comparison.model for comparison in comparisons] == ["equal", "work", "services"]
    for comparison in comparisons:
        policies = {figures.policy: figures for figures in comparison.figures}
        assert list(policies) == ["happened", "fifo", "backfill", "market"]
        # 3 pods waited 9 h, one 8 h, one not at all; all of them is what first come first served
        # does with a fleet of 4.
        assert policies["happened"].average_wait == (3 * 9 + 8) * HOUR / 5
        assert policies["fifo"].average_wait == policies["happened"].average_wait
        assert policies["happened"].waits == {"1": (3 * 9 + 8) * HOUR / 4, "3-4": 0.0}
    urgent = [{f.policy: f.urgent_in_time for f in c.figures} for c in comparisons]
    assert urgent[0]["market"] is None
    assert (urgent[2]["happened"], urgent[2]["fifo"]) == (0.0, 0.0)
    services = {figures.policy: figures for figures in comparisons[2].figures}
    assert services["market"].urgent_in_time == 1.0, "its worth would be lost after 5 minutes"
    assert services["market"].stops >= 1
    assert services["market"].value_share > services["fifo"].value_share


def test_value_is_what_the_models_say() -> None:
    (job,) = recorded_jobs(
        recording(shadow_pod("p", 2, created=0, scheduled=0, ended=HOUR, owner="Deployment/d"))
    )
    equal, work, services = (model.apply(job) for model in MODELS)
    assert (equal.value, equal.patience, equal.urgent) == (1.0, 5 * HOUR, False)
    assert (work.value, work.patience, work.urgent) == (2.0, 5 * HOUR, False)
    assert (services.value, services.patience, services.urgent) == (10.0, 300, True)


def test_jobs_are_cut_to_the_window() -> None:
    jobs = recorded_jobs(
        recording(
            shadow_pod("before", created=-9 * HOUR, scheduled=-8 * HOUR, ended=HOUR),
            shadow_pod("waited", created=-HOUR, scheduled=2 * HOUR, ended=3 * HOUR),
            shadow_pod("after", created=20 * HOUR, scheduled=21 * HOUR),
            shadow_pod("long gone", created=-9 * HOUR, scheduled=-8 * HOUR, ended=-HOUR),
        )
    )
    found_jobs = {r.job.name: (r.job.arrives, r.waited, r.job.seconds) for r in jobs}
    assert found_jobs == {
        "ns/before": (0, 0, HOUR),
        "ns/waited": (0, 2 * HOUR, HOUR),
        "ns/after": (20 * HOUR, HOUR, 3 * HOUR),
    }


def test_a_fleet_that_is_too_small_is_made_to_hold_what_was_held() -> None:
    pods = [shadow_pod(f"p{i}", 4, created=0, scheduled=0, ended=HOUR) for i in range(3)]
    # One begins as another ends: they never hold at once.
    pods.append(shadow_pod("next", 4, created=0, scheduled=HOUR, ended=2 * HOUR))
    crowded = recording(*pods, nodes=(2,))
    assert nodes_for(crowded, [r.job for r in recorded_jobs(crowded)]) == (2, 8, 2)


def test_the_recording_is_replayed_by_the_simulator(tmp_path: Path) -> None:
    path = tmp_path / "day.json"
    path.write_bytes(msgspec.json.encode(CROWDED))
    trace = read(path)
    assert trace.nodes == (4,)
    jobs = {job.name: (job.gpus, job.tenant) for job in trace.jobs}
    assert (jobs["ns/long"], jobs["ns/web"]) == ((4, "ns"), (1, "ns/Deployment/web"))
    assert len(jobs) == 5
    path.write_text(path.read_text()[:200])
    with pytest.raises(UserError, match="no recording of `bidplane shadow`"):
        read(path)


def test_waits_are_counted_by_size() -> None:
    rows = {row.size: row for row in waiting_by_size(CROWDED)}
    assert (rows["1"].scheduled, rows["1"].longest) == (4, 9 * HOUR)
    assert (rows["5-8"].pending, rows["5-8"].oldest_pending) == (1, 21 * HOUR)
    gone = recording(shadow_pod("p", created=0, scheduled=None, ended=HOUR))
    assert waiting_by_size(gone)[0].gave_up == 1


def shown(comparisons: list[ModelComparison], owner: str, *, known: bool = True) -> ShadowReport:
    stretches = [UseStretch(BEGIN, BEGIN + 20 * HOUR, idle=True)]
    idle = msgspec.structs.replace(
        CROWDED,
        pods=[msgspec.structs.replace(pod, owner=owner) for pod in CROWDED.pods],
        uses=[DeviceUse(namespace="ns", pod="web", device="GPU-0", stretches=stretches)],
        gaps=[Gap(source="kube_pod_owner " * 9, cost="each pod is an owner of its own " * 5)],
        waits_known=known,
    )
    return report_of(idle, comparisons, price=ListPrice(2.5, "EUR"))


@given(owner=st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=120))
def test_the_text_fits_80_columns(owner: str) -> None:
    lines = list(text.lines_of(shown([], f"Job/{owner}")))
    assert max(map(len, lines)) <= 80


def test_the_text_says_what_needs_no_model_first(comparisons: list[ModelComparison]) -> None:
    lines = list(text.lines_of(shown(comparisons, "Deployment/web")))
    assert max(map(len, lines)) <= 80
    whole = "\n".join(lines)
    heads = ["GPU-HOURS", "IDLE GPU-HOURS BY OWNER", "WAITING", "THE SAME PODS", "MISSING"]
    positions = [whole.index(head) for head in heads]
    assert positions == sorted(positions)
    assert "idle, at 2.50 EUR a GPU-hour: 25 EUR" in whole, "10 h of web's 14 h, until 20 h"
    assert "1 pods that were never scheduled are left out" in whole


def test_unknown_waits_are_no_zeros() -> None:
    report = shown([], "Job/a", known=False)
    assert report.waiting == ()
    assert "unknown; see what is missing" in "\n".join(text.lines_of(report))


class Elements(HTMLParser):
    """The names of elements, and what they would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.fetches: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.fetches += [str(value) for name, value in attrs if name in ("src", "href")]


def test_the_page_is_whole_in_itself(comparisons: list[ModelComparison]) -> None:
    elements = Elements()
    elements.feed(page(shown(comparisons, f"Job/{EVIL}")))
    assert elements.names.count("svg") == 6, "days, owners, waiting, and one for each model"
    assert elements.names.count("rect") > 30
    assert not elements.fetches
    assert "script" not in elements.names, "owners choose names"


def test_the_report_is_json(comparisons: list[ModelComparison]) -> None:
    report = json.loads(msgspec.json.encode(shown(comparisons, "Job/a")))
    assert report["owners"][0]["hours"]["idle"] == 10.0
    assert report["idle_cost"] == 25.0
    assert report["models"][2]["figures"][3]["policy"] == "market"
