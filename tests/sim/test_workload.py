"""Drawing and printing."""

from __future__ import annotations

import json
import math
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bidplane.cli import sim as cli
from bidplane.cli.sim import SimulationSetup
from bidplane.errors import UserError
from bidplane.sim.cluster import SimulatedCluster, failures
from bidplane.sim.workload import Job, generate, with_values


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


def test_requests_that_come_while_their_gpu_is_not_there_are_late() -> None:
    job = Job(name="s", arrives=0, gpus=1, seconds=100, patience=10.0, urgent=True, requests=50)
    assert [job.in_time_after(waited) for waited in (0, 10, 60, 200)] == [1.0, 1.0, 0.5, 0.0]
    (valued,) = with_values([job], seed=1)
    assert (valued.patience, valued.requests) == (10.0, 50), "it knows how long it can wait"
    assert valued.worth_after(60) == valued.value / 2


def test_a_node_that_is_down_is_not_used_and_devices_are_handed_out_once() -> None:
    cluster = SimulatedCluster((4, 8))
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
    drawn = failures([8] * 20, mean_hours=50, repair_seconds=60, span=span, seed=1)
    assert len(drawn) == pytest.approx(20 * 1000 / 50, rel=0.2)
    assert drawn == failures([8] * 20, mean_hours=50, repair_seconds=60, span=span, seed=1)


SMALL = SimulationSetup(jobs=40, nodes=2, values=True, node_hours=20.0)


def test_run_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    cli.run(policy="exchange", setting=SMALL, json=True)
    output = json.loads(capsys.readouterr().out)
    assert output["policy"] == "exchange"
    assert output["jobs"] == 40


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
    assert len(bars) == 2 * 10
    assert all(0 <= float(bar.get("width", "-1")) <= 300 for bar in bars)
    with pytest.raises(UserError, match="cannot write"):
        cli.compare(policy=("fifo",), setting=SMALL, svg=tmp_path / "no" / "c.svg")


def test_a_wrong_policy_is_refused_before_anything_is_played(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="choose one of"):
        cli.compare(
            policy=("fifo", "nope"), setting=SimulationSetup(trace=tmp_path / "not-read.csv")
        )
    with pytest.raises(UserError, match="--nodes"):
        cli.run(policy="fifo", setting=SimulationSetup(nodes=0))
    with pytest.raises(UserError, match="--load"):
        cli.run(policy="fifo", setting=SimulationSetup(load=0.0))
    with pytest.raises(UserError, match="--notice-seconds must be zero or more"):
        cli.run(policy="fifo", setting=SimulationSetup(notice_seconds=-1))


HEADER = "job_id,submit_time,num_gpus,duration\n"


def test_a_trace_larger_than_the_fleet_or_broken_is_refused_with_words(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(HEADER + "a,0,64,10\n")
    with pytest.raises(UserError, match="a asks for 64 GPUs; the nodes have 16: see --nodes"):
        cli.run(policy="exchange", setting=SimulationSetup(trace=path, nodes=2))
    path.write_text(HEADER + "a,0,1,-10\n")
    with pytest.raises(UserError, match="line 2: the duration -10"):
        cli.compare(policy=("fifo",), setting=SimulationSetup(trace=path))


def test_a_trace_that_names_its_fleet_is_played_on_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "g.csv"
    path.write_text(
        "job_id,submit_time,num_gpus,dur_v100,dur_k80\n0,0,4,100,900\n1,0,4,100,900\n2,0,4,100,900\n"
    )
    cli.run(policy="fifo", setting=SimulationSetup(trace=path), json=True)
    assert json.loads(capsys.readouterr().out)["makespan"] == 900  # two on V100, one on K80
    cli.run(policy="exchange", setting=SimulationSetup(trace=path), json=True)
    assert json.loads(capsys.readouterr().out)["makespan"] <= 900
    with pytest.raises(UserError, match="leave out --nodes"):
        cli.run(policy="fifo", setting=SimulationSetup(trace=path, nodes=3))
