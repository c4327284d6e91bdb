"""
Jobs, nodes and a policy under a virtual clock.

The clock jumps from event to event: a job arrives or ends, a node fails or recovers, the policy
has asked to decide again. At each the policy decides from the present state, and the engine
carries the decision out. Nothing is random: one input gives one result.

A preempted job saves its work on notice and only repeats its restart. A job whose node fails also
loses its work since the last checkpoint.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from bidplane.sim.cluster import Failure, Seats, SimulatedCluster
from bidplane.sim.workload import Job, check


class Costs(NamedTuple):
    """The cost of an interruption, in seconds of the job's own GPUs."""

    restart: int = 40
    restart_large: int = 60  # for more than 8 GPUs
    checkpoint_every: int = 1800  # matters when a node fails

    def restart_of(self, job: Job) -> int:
        """The restart time of a job."""
        return self.restart if job.gpus <= 8 else self.restart_large


class Task:
    """A job in the simulation: waiting, running, or done."""

    __slots__ = (
        "_remaining",
        "attained",
        "ended",
        "intervals",
        "job",
        "preemptions",
        "seats",
        "since",
        "speed",
        "started",
        "version",
        "waited",
        "wasted",
    )

    def __init__(self, job: Job) -> None:
        self.job = job
        self._remaining = job.seconds
        self.since = job.arrives  # start of its present run or wait
        self.seats: Seats | None = None
        self.speed = 1.0  # of its GPUs, relative to those that `seconds` refers to
        self.attained = 0  # GPU-seconds until `since`
        self.waited = 0  # seconds until `since`
        self.started = -1
        self.intervals: list[tuple[int, int]] = []  # start and end of each run
        self.ended = -1
        self.preemptions = 0
        self.wasted = 0  # GPU-seconds
        self.version = 0

    def __repr__(self) -> str:
        state = "done" if self.ended >= 0 else "runs" if self.seats is not None else "waits"
        return f"<Task {self.job.name} {state}, {self._remaining} s left>"

    @property
    def runs(self) -> bool:
        return self.seats is not None

    def left(self, now: int) -> int:
        """The remaining seconds of running, on GPUs of speed 1."""
        return (
            self._remaining - int((now - self.since) * self.speed) if self.runs else self._remaining
        )

    def ends_in(self, now: int) -> int:
        """The seconds until it is done on its present GPUs."""
        return math.ceil(self._remaining / self.speed) - (now - self.since)

    def service(self, now: int) -> int:
        """The GPU-seconds it has had."""
        return self.attained + self.job.gpus * (now - self.since) * self.runs

    def waiting(self, now: int) -> int:
        """The seconds it has waited."""
        return self.waited + (0 if self.runs else now - self.since)

    def start(self, now: int, seats: Seats, speed: float = 1.0) -> None:
        """Put the task on these GPUs."""
        self.waited += now - self.since
        self.since, self.seats, self.speed = now, seats, speed
        self.started = now if self.started < 0 else self.started
        self.version += 1

    def stop(self, now: int, *, redo_seconds: int) -> None:
        """Take the task off its GPUs, with `redo_seconds` of work to repeat."""
        self._remaining = max(0, self.left(now)) + redo_seconds
        self.attained = self.service(now)
        self.wasted += redo_seconds * self.job.gpus
        self.intervals.append((self.since, now))
        self.since, self.seats = now, None
        self.version += 1


class SchedulingDecision(NamedTuple):
    """The tasks to stop, then those to start with their GPUs."""

    stop: Sequence[Task] = ()
    start: Sequence[tuple[Task, Seats]] = ()


class SchedulingPolicy(Protocol):
    """A scheduling policy."""

    name: str

    def prepare(self, tasks: Sequence[Task], cluster: SimulatedCluster, costs: Costs) -> None:
        """
        Set up, once, before the simulation. Decisions must not use jobs that have not arrived.
        """
        ...

    def decide(
        self, now: int, waiting: Sequence[Task], running: Sequence[Task], cluster: SimulatedCluster
    ) -> SchedulingDecision: ...

    def next_decision(self, now: int, *, any_waiting: bool) -> int | None:
        """The time at which to decide even without an event; None: only at events."""
        ...

    def decides_at(self, now: int) -> bool:
        """Return True if it decides at this moment, at which an event happened."""
        ...


class SimulationOutcome(NamedTuple):
    """The result of a simulation."""

    policy: str
    tasks: Sequence[Task]
    gpus: int
    began: int
    ended: int
    decisions: int


def simulate(
    jobs: Sequence[Job],
    nodes: Sequence[int],
    policy: SchedulingPolicy,
    *,
    kinds: Sequence[str] = (),
    costs: Costs | None = None,
    failures: Sequence[Failure] = (),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> SimulationOutcome:
    """Run the jobs under the policy. `kinds`: the kind of each node's GPUs, if they differ."""
    cluster = SimulatedCluster(nodes, kinds)
    check(jobs, cluster.sizes, cluster.kinds)
    run = _Run(jobs, cluster, policy, costs or Costs(), failures)
    while run.done < len(jobs):
        run.step()
        progress(run.done, len(jobs))
    began = min((job.arrives for job in jobs), default=0)
    ended = max((task.ended for task in run.tasks), default=began)
    return SimulationOutcome(policy.name, run.tasks, sum(nodes), began, ended, run.decisions)


class _Run:
    """The state of a simulation."""

    def __init__(
        self,
        jobs: Sequence[Job],
        cluster: SimulatedCluster,
        policy: SchedulingPolicy,
        costs: Costs,
        failures: Sequence[Failure],
    ) -> None:
        self.tasks = [Task(job) for job in sorted(jobs, key=lambda j: (j.arrives, j.name))]
        self.done = 0
        self.decisions = 0
        self._policy, self._costs = policy, costs
        self._cluster = cluster
        self._arrived = 0
        self._waiting: dict[int, Task] = {}  # by number: the order of arrival
        self._running: dict[int, Task] = {}
        self._number = {id(task): number for number, task in enumerate(self.tasks)}
        self._ends: list[tuple[int, int, int]] = []  # when, number, version
        self._outages = [(f.at, 1, f.node) for f in failures]
        self._outages += [(f.until, 0, f.node) for f in failures]
        heapq.heapify(self._outages)
        self._next_look: int | None = None
        self.now = 0
        policy.prepare(self.tasks, cluster, costs)

    def step(self) -> None:
        """Advance to the next event and handle it."""
        self.now = now = self._next_event()
        self._end_tasks(now)
        while self._outages and self._outages[0][0] == now:
            _, fails, node = heapq.heappop(self._outages)
            self._fail_node(node) if fails else self._cluster.down.discard(node)
        while self._arrived < len(self.tasks) and self.tasks[self._arrived].job.arrives <= now:
            self._waiting[self._arrived] = self.tasks[self._arrived]
            self._arrived += 1
        if self._next_look == now or self._policy.decides_at(now):
            self._decide(now)
        self._next_look = self._policy.next_decision(now, any_waiting=bool(self._waiting))

    def _next_event(self) -> int:
        """The time of the next event."""
        while self._ends and self._ends[0][2] != self.tasks[self._ends[0][1]].version:
            heapq.heappop(self._ends)
        moments = [self._ends[0][0]] if self._ends else []
        if self._arrived < len(self.tasks):
            moments.append(self.tasks[self._arrived].job.arrives)
        if self._outages:
            moments.append(self._outages[0][0])
        if self._next_look is not None and (self._waiting or self._running):
            moments.append(self._next_look)
        if not moments:
            raise RuntimeError(
                f"{self._policy.name} never starts {len(self._waiting)} waiting jobs"
            )
        return max(self.now, min(moments))

    def _end_tasks(self, now: int) -> None:
        """End the tasks that are done now."""
        while self._ends and self._ends[0][0] == now:
            _, number, version = heapq.heappop(self._ends)
            task = self.tasks[number]
            if task.version == version:
                self._stop(number, redo_seconds=0)
                task.ended = now
                self.done += 1

    def _fail_node(self, node: int) -> None:
        """Take a node down and stop its tasks."""
        affected = [n for n, t in self._running.items() if t.seats and node in t.seats]
        for number in affected:
            task = self.tasks[number]
            lost_seconds = int(
                task.speed * ((self.now - task.since) % self._costs.checkpoint_every)
            )
            self._stop(number, redo_seconds=lost_seconds + self._costs.restart_of(task.job))
            self._waiting[number] = task
        self._cluster.down.add(node)

    def _stop(self, number: int, *, redo_seconds: int) -> None:
        """Take a task off its GPUs."""
        task = self._running.pop(number)
        assert task.seats is not None
        self._cluster.give(task.seats)
        task.stop(self.now, redo_seconds=redo_seconds)

    def _decide(self, now: int) -> None:
        """Let the policy decide, and carry its decision out."""
        self.decisions += 1
        waiting = [self._waiting[n] for n in sorted(self._waiting)]
        running = [self._running[n] for n in sorted(self._running)]
        decision = self._policy.decide(now, waiting, running, self._cluster)
        for task in decision.stop:
            number = self._number[id(task)]
            task.preemptions += 1
            self._stop(number, redo_seconds=self._costs.restart_of(task.job))
            self._waiting[number] = task
        for task, seats in decision.start:
            number = self._number[id(task)]
            del self._waiting[number]
            self._cluster.take(seats)
            task.start(now, seats, self._speed(task.job, seats))
            self._running[number] = task
            heapq.heappush(self._ends, (now + task.ends_in(now), number, task.version))

    def _speed(self, job: Job, seats: Seats) -> float:
        """The speed of the slowest GPUs it has: a gang waits for its last."""
        return min(job.speed_on(self._cluster.kinds[node]) for node in seats)
