"""What every policy must keep, and what makes each of them itself."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidplane.errors import UserError
from bidplane.sim import first_come
from bidplane.sim.cluster import Failure, Seats, SimulatedCluster
from bidplane.sim.engine import Costs, SchedulingDecision, SimulationOutcome, Task, simulate
from bidplane.sim.exchange import RULES
from bidplane.sim.metrics import measure
from bidplane.sim.policies import QUEUES, find
from bidplane.sim.workload import Job, generate, with_values

ALL = [*QUEUES, *RULES]
NODES = (8, 8, 8, 8)


def job(name: str, arrives: int, gpus: int, seconds: int, **more: object) -> Job:
    return Job(name=name, arrives=arrives, gpus=gpus, seconds=seconds, **more)  # type: ignore[arg-type]


def ends(outcome: SimulationOutcome) -> dict[str, int]:
    return {task.job.name: task.ended for task in outcome.tasks}


class Watched:
    """A policy whose every decision is looked at."""

    def __init__(self, name: str) -> None:
        self.inner = find(name)
        self.name = name
        self.down: list[tuple[int, int]] = []

    def prepare(self, tasks: Sequence[Task], cluster: SimulatedCluster, costs: Costs) -> None:
        self.inner.prepare(tasks, cluster, costs)

    def decide(
        self, now: int, waiting: list[Task], running: list[Task], cluster: SimulatedCluster
    ) -> SchedulingDecision:
        decision = self.inner.decide(now, waiting, running, cluster)
        assert all(task.runs for task in decision.stop)
        for task, seats in decision.start:
            assert not task.runs or task in decision.stop  # it comes back at once
            check_seats(task.job, seats)
            assert not cluster.down.intersection(seats)
        return decision

    def next_decision(self, now: int, *, any_waiting: bool) -> int | None:
        return self.inner.next_decision(now, any_waiting=any_waiting)

    def decides_at(self, now: int) -> bool:
        return self.inner.decides_at(now)


def check_seats(job: Job, seats: Seats) -> None:
    """One node if it fits in one; else whole nodes and a rest."""
    sizes = sorted(map(len, seats.values()))
    assert len(seats) == -(-job.gpus // 8)
    # An odd size may be sold as the next block up.
    assert job.gpus <= sum(sizes) < 2 * job.gpus
    assert all(size == 8 for size in sizes[1:])


JOBS = st.lists(
    st.tuples(
        st.integers(0, 500), st.sampled_from([1, 1, 1, 2, 4, 8, 16, 32]), st.integers(1, 5000)
    ),
    min_size=1,
    max_size=25,
)
TROUBLE = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3000), st.integers(1, 2000)), max_size=3
)


@pytest.mark.parametrize("policy", ALL)
@settings(max_examples=25, deadline=None)
@given(shapes=JOBS, trouble=TROUBLE)
def test_no_policy_loses_or_invents_gpu_time(
    policy: str,
    shapes: list[tuple[int, int, int]],
    trouble: list[tuple[int, int, int]],
) -> None:
    jobs = [job(f"j{n}", *shape, tenant=f"t{n % 3}") for n, shape in enumerate(shapes)]
    failures = [Failure(node, at, at + lasts) for node, at, lasts in trouble]
    failures = list({failure.node: failure for failure in failures}.values())
    outcome = simulate(jobs, NODES, Watched(policy), failures=failures)  # type: ignore[arg-type]
    for task in outcome.tasks:
        assert task.left(task.ended) == 0
        # What it had is what it needed and what it had to do again, to the second.
        assert task.attained == task.job.work + task.wasted
        assert task.ended - task.job.arrives == task.waited + task.attained // task.job.gpus
        assert task.ended >= task.job.arrives + task.job.seconds


@pytest.mark.parametrize("policy", ALL)
def test_one_seed_one_result(policy: str) -> None:
    def play(seed: int) -> object:
        jobs = with_values(generate(60, gpus=32, load=1.5, seed=seed), seed=seed)
        return measure(simulate(jobs, NODES, find(policy)))

    assert play(1) == play(1)
    assert play(1) != play(2)


@settings(max_examples=40, deadline=None)
@given(shapes=JOBS)
def test_fifo_is_first_come_first_served(shapes: list[tuple[int, int, int]]) -> None:
    """Against another implementation, for jobs of one node."""
    jobs = [
        job(f"j{n:02d}", arrives, min(8, gpus), seconds)
        for n, (arrives, gpus, seconds) in enumerate(shapes)
    ]
    peer_jobs = [
        first_come.QueuedJob(name=j.name, arrives=j.arrives, gpus=j.gpus, seconds=j.seconds)
        for j in jobs
    ]
    expected = {run.job: run.ended for run in first_come.first_come(peer_jobs, NODES)}
    assert ends(simulate(jobs, NODES, find("fifo"))) == expected


LONG_FIRST = [job("long", 0, 8, 1000), job("wide", 1, 16, 100), job("short", 2, 1, 10)]


def test_fifo_waits_behind_what_does_not_fit_and_backfill_does_not() -> None:
    assert ends(simulate(LONG_FIRST, (8, 8), find("fifo"))) == {
        "long": 1000,
        "wide": 1100,
        "short": 1110,
    }
    assert ends(simulate(LONG_FIRST, (8, 8), find("backfill")))["short"] == 12


def test_srtf_preempts_for_the_shorter_and_pays_the_restart() -> None:
    jobs = [job("long", 0, 8, 1000), job("short", 100, 8, 10)]
    outcome = simulate(jobs, (8,), find("srtf"), costs=Costs(restart=40))
    assert ends(outcome) == {"short": 110, "long": 110 + 900 + 40}
    metrics = measure(outcome)
    assert (metrics.preemptions, metrics.wasted) == (1, 8 * 40 / 3600)


def test_las_lets_a_newcomer_in_once_the_first_has_had_its_share() -> None:
    jobs = [job("old", 0, 8, 10_000), job("new", 2400, 8, 100)]
    assert ends(simulate(jobs, (8,), find("las")))["new"] == 2500
    jobs = [job("old", 0, 8, 10_000), job("new", 600, 8, 100)]  # 4,800 GPU-s: not yet
    assert ends(simulate(jobs, (8,), find("las")))["new"] > 2300


def test_priority_is_strict_and_fair_share_is_by_tenant() -> None:
    jobs = [job("low", 0, 8, 1000), job("high", 100, 8, 50, priority=1)]
    assert ends(simulate(jobs, (8,), find("priority")))["high"] == 150
    hog = [job(f"hog{n}", 0, 4, 1000, tenant="a") for n in range(4)]
    other = job("other", 60, 4, 100, tenant="b")
    assert ends(simulate([*hog, other], (8,), find("fair")))["other"] == 160


def test_a_failing_node_costs_what_was_not_saved() -> None:
    costs = Costs(restart=40, checkpoint_every=300)
    failure = Failure(node=0, at=1000, until=2000)
    outcome = simulate([job("a", 0, 8, 1500)], (8,), find("fifo"), costs=costs, failures=[failure])
    # 1000 s done, 900 saved; the node is back at 2000; 600 s left, and 40 to restart.
    assert ends(outcome) == {"a": 2000 + 600 + 40}
    assert measure(outcome).wasted == 8 * 140 / 3600


def test_a_job_no_fleet_can_hold_and_a_policy_nobody_knows_are_refused() -> None:
    with pytest.raises(UserError, match="asks for 64 GPUs; the nodes have 32"):
        simulate([job("a", 0, 64, 1)], NODES, find("fifo"))
    with pytest.raises(UserError, match="choose one of fifo"):
        find("magic")


@pytest.mark.slow
def test_on_a_loaded_fleet_the_exchange_is_ahead_where_it_says() -> None:
    jobs = generate(400, gpus=64, load=2.0, seed=8)
    metrics = {
        name: measure(simulate(jobs, [8] * 8, find(name)))
        for name in ("fifo", "las", "srtf", "exchange", "exchange-blind")
    }
    assert metrics["exchange"].average_completion <= 1.02 * metrics["srtf"].average_completion
    assert metrics["exchange"].preemptions < metrics["srtf"].preemptions
    assert metrics["exchange-blind"].average_completion < metrics["las"].average_completion
    assert metrics["exchange"].utilisation >= metrics["fifo"].utilisation
    valued = with_values(jobs, seed=7)
    worth = {
        name: measure(simulate(valued, [8] * 8, find(name))).value
        for name in ("fifo", "las", "srtf", "priority", "exchange-worth")
    }
    assert max(worth, key=lambda name: worth[name]) == "exchange-worth"
