"""Reading, drawing and printing."""

from __future__ import annotations

import json
import math
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bidplane.cli import sim as cli
from bidplane.cli.sim import Setting
from bidplane.errors import UserError
from bidplane.sim.cluster import Cluster, failures
from bidplane.sim.workload import Job, generate, read_trace, with_values

HEADER = "job_id,submit_time,num_gpus,duration,tenant\n"


def test_a_trace_is_read_in_the_order_of_arrival(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(HEADER + "b,20.7,2,0.4,x\na,10,1,60.9,\n")
    assert read_trace(path) == [
        Job(name="a", arrives=10, gpus=1, seconds=60),
        Job(name="b", arrives=20, gpus=2, seconds=1, tenant="x"),
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("job_id,submit_time\n", "no column num_gpus, duration"),
        (HEADER, "no job in it"),
        (HEADER + "a,0,many,5,x\n", "line 2 cannot be read"),
        (HEADER + "a,0,0,5,x\n", "needs a GPU"),
        (HEADER + "a,-5,1,5,x\n", "a time from 0 on"),
        (HEADER + "a,0\n", "line 2 cannot be read"),
        ("", "no column"),
    ],
)
def test_what_is_no_trace_is_a_clear_error(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=problem):
        read_trace(path)
    with pytest.raises(UserError, match="cannot read"):
        read_trace(tmp_path / "none.csv")


def test_drawn_work_asks_for_the_load_it_was_told() -> None:
    jobs = generate(2000, gpus=64, load=1.5, seed=3)
    span = max(job.arrives for job in jobs)
    assert sum(job.work for job in jobs) / (64 * span) == pytest.approx(1.5, rel=0.05)
    assert jobs == generate(2000, gpus=64, load=1.5, seed=3)
    assert jobs != generate(2000, gpus=64, load=1.5, seed=4)


def test_values_fall_with_waiting_and_urgent_ones_fall_faster() -> None:
    valued = with_values(generate(500, gpus=64, load=1.0, seed=1), seed=1)
    share = sum(job.urgent for job in valued) / len(valued)
    assert 0.05 < share < 0.15
    for job in valued:
        assert job.worth_after(0) == job.value
        assert job.worth_after(job.patience) == 0
        assert job.worth_after(2 * job.patience) == 0
        assert job.patience < (1.0 if job.urgent else math.inf) * max(301, job.seconds)


def test_a_node_that_is_down_is_not_used_and_devices_are_handed_out_once() -> None:
    cluster = Cluster((4, 8))
    cluster.down.add(1)
    assert cluster.find(5) is None
    seats = cluster.find(3)
    assert seats == {0: (0, 1, 2)}
    cluster.take(seats)
    with pytest.raises(RuntimeError):
        cluster.take(seats)
    cluster.give(seats)
    with pytest.raises(RuntimeError):
        cluster.give(seats)


def test_failures_come_as_often_as_they_are_told() -> None:
    span = 1000 * 3600
    found = failures([8] * 20, mean_hours=50, repair_seconds=60, span=span, seed=1)
    assert len(found) == pytest.approx(20 * 1000 / 50, rel=0.2)
    assert found == failures([8] * 20, mean_hours=50, repair_seconds=60, span=span, seed=1)


SMALL = Setting(jobs=40, nodes=2, values=True, node_hours=20.0)


def test_run_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    cli.run(policy="exchange", setting=SMALL, json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["policy"] == "exchange"
    assert found["jobs"] == 40


def test_compare_prints_a_table_and_draws(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    svg = tmp_path / "c.svg"
    cli.compare(policy=("fifo", "exchange"), setting=SMALL, svg=svg)
    printed = capsys.readouterr().out
    assert "fifo" in printed
    assert "exchange" in printed
    drawn = ElementTree.fromstring(svg.read_text())
    bars = [r for r in drawn.iter("{http://www.w3.org/2000/svg}rect") if r.get("x")]
    assert len(bars) == 2 * 8
    assert all(0 <= float(bar.get("width", "-1")) <= 300 for bar in bars)
    with pytest.raises(UserError, match="cannot write"):
        cli.compare(policy=("fifo",), setting=SMALL, svg=tmp_path / "no" / "c.svg")


def test_a_wrong_policy_is_refused_before_anything_is_played(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="choose one of"):
        cli.compare(policy=("fifo", "nope"), setting=Setting(trace=tmp_path / "not-read.csv"))
    with pytest.raises(UserError, match="--nodes"):
        cli.run(policy="fifo", setting=Setting(nodes=0))
    with pytest.raises(UserError, match="--load"):
        cli.run(policy="fifo", setting=Setting(load=0.0))
