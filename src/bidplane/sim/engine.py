"""
Jobs, nodes and a policy under a virtual clock.

The clock jumps from event to event: a job arrives or ends, a node fails or comes back, the
policy wants to look again. At each the policy decides from what is, and the engine carries
it out. There is no chance in here: one input, one result.

A preempted job saves its work on notice and has its restart to do again. A job whose node
fails loses what it did since its last checkpoint as well.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from bidplane.sim.cluster import Cluster, Failure, Seats
from bidplane.sim.workload import Job, check


class Costs(NamedTuple):
    """What an interruption costs, in seconds of the job's own GPUs."""

    restart: int = 40
    restart_large: int = 60  # of more than 8 GPUs
    checkpoint_every: int = 1800  # matters when a node fails

    def restart_of(self, job: Job) -> int:
        return self.restart if job.gpus <= 8 else self.restart_large


class Task:
    """A job on its way: waiting, running, or done."""

    __slots__ = (
        "_left",
        "attained",
        "ended",
        "job",
        "preemptions",
        "seats",
        "since",
        "speed",
        "started",
        "stays",
        "version",
        "waited",
        "wasted",
    )

    def __init__(self, job: Job) -> None:
        self.job = job
        self._left = job.seconds
        self.since = job.arrives  # it runs, or waits, since then
        self.seats: Seats | None = None
        self.speed = 1.0  # of the GPUs it has, against those its `seconds` are of
        self.attained = 0  # GPU-seconds until `since`
        self.waited = 0  # seconds until `since`
        self.started = -1
        self.stays: list[tuple[int, int]] = []  # from when to when it had its GPUs
        self.ended = -1
        self.preemptions = 0
        self.wasted = 0  # GPU-seconds
        self.version = 0

    def __repr__(self) -> str:
        state = "done" if self.ended >= 0 else "runs" if self.seats is not None else "waits"
        return f"<Task {self.job.name} {state}, {self._left} s left>"

    @property
    def runs(self) -> bool:
        return self.seats is not None

    def left(self, now: int) -> int:
        """Seconds of running until it is done, on GPUs of speed 1."""
        return self._left - int((now - self.since) * self.speed) if self.runs else self._left

    def ends_in(self, now: int) -> int:
        """Seconds until it is done where it runs."""
        return math.ceil(self._left / self.speed) - (now - self.since)

    def service(self, now: int) -> int:
        """GPU-seconds it has had."""
        return self.attained + self.job.gpus * (now - self.since) * self.runs

    def waiting(self, now: int) -> int:
        """Seconds it has waited."""
        return self.waited + (0 if self.runs else now - self.since)

    def start(self, now: int, seats: Seats, speed: float = 1.0) -> None:
        self.waited += now - self.since
        self.since, self.seats, self.speed = now, seats, speed
        self.started = now if self.started < 0 else self.started
        self.version += 1

    def stop(self, now: int, *, again: int) -> None:
        """Off its GPUs, with `again` seconds to be done once more."""
        self._left = max(0, self.left(now)) + again
        self.attained = self.service(now)
        self.wasted += again * self.job.gpus
        self.stays.append((self.since, now))
        self.since, self.seats = now, None
        self.version += 1


class Decision(NamedTuple):
    """Those who leave, then those who start, and where."""

    stop: Sequence[Task] = ()
    start: Sequence[tuple[Task, Seats]] = ()


class Policy(Protocol):
    name: str

    def prepare(self, tasks: Sequence[Task], cluster: Cluster, costs: Costs) -> None:
        """Once, before anything happens. What jobs will come is not to be used to decide."""
        ...

    def decide(
        self, now: int, waiting: Sequence[Task], running: Sequence[Task], cluster: Cluster
    ) -> Decision: ...

    def next_look(self, now: int, *, any_waiting: bool) -> int | None:
        """When to decide even if nothing happens; None: only when something does."""
        ...

    def looks_at(self, now: int) -> bool:
        """Whether it decides at this moment, at which something happened."""
        ...


class Outcome(NamedTuple):
    policy: str
    tasks: Sequence[Task]
    gpus: int
    began: int
    ended: int
    decisions: int


def simulate(
    jobs: Sequence[Job],
    nodes: Sequence[int],
    policy: Policy,
    *,
    kinds: Sequence[str] = (),
    costs: Costs | None = None,
    failures: Sequence[Failure] = (),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Outcome:
    """`kinds`: of which kind each node's GPUs are, if they differ."""
    cluster = Cluster(nodes, kinds)
    check(jobs, cluster.sizes, cluster.kinds)
    run = _Run(jobs, cluster, policy, costs or Costs(), failures)
    while run.done < len(jobs):
        run.step()
        progress(run.done, len(jobs))
    began = min((job.arrives for job in jobs), default=0)
    ended = max((task.ended for task in run.tasks), default=began)
    return Outcome(policy.name, run.tasks, sum(nodes), began, ended, run.decisions)


class _Run:
    def __init__(
        self,
        jobs: Sequence[Job],
        cluster: Cluster,
        policy: Policy,
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
        self._trouble = [(f.at, 1, f.node) for f in failures]
        self._trouble += [(f.until, 0, f.node) for f in failures]
        heapq.heapify(self._trouble)
        self._look: int | None = None
        self.now = 0
        policy.prepare(self.tasks, cluster, costs)

    def step(self) -> None:
        """To the next moment at which something happens."""
        self.now = now = self._next()
        self._end(now)
        while self._trouble and self._trouble[0][0] == now:
            _, fails, node = heapq.heappop(self._trouble)
            self._fail(node) if fails else self._cluster.down.discard(node)
        while self._arrived < len(self.tasks) and self.tasks[self._arrived].job.arrives <= now:
            self._waiting[self._arrived] = self.tasks[self._arrived]
            self._arrived += 1
        if self._look == now or self._policy.looks_at(now):
            self._decide(now)
        self._look = self._policy.next_look(now, any_waiting=bool(self._waiting))

    def _next(self) -> int:
        while self._ends and self._ends[0][2] != self.tasks[self._ends[0][1]].version:
            heapq.heappop(self._ends)
        moments = [self._ends[0][0]] if self._ends else []
        if self._arrived < len(self.tasks):
            moments.append(self.tasks[self._arrived].job.arrives)
        if self._trouble:
            moments.append(self._trouble[0][0])
        if self._look is not None and (self._waiting or self._running):
            moments.append(self._look)
        if not moments:
            raise RuntimeError(f"{self._policy.name} leaves {len(self._waiting)} jobs for ever")
        return max(self.now, min(moments))

    def _end(self, now: int) -> None:
        while self._ends and self._ends[0][0] == now:
            _, number, version = heapq.heappop(self._ends)
            task = self.tasks[number]
            if task.version == version:
                self._off(number, again=0)
                task.ended = now
                self.done += 1

    def _fail(self, node: int) -> None:
        hit = [n for n, t in self._running.items() if t.seats and node in t.seats]
        for number in hit:
            task = self.tasks[number]
            lost = int(task.speed * ((self.now - task.since) % self._costs.checkpoint_every))
            self._off(number, again=lost + self._costs.restart_of(task.job))
            self._waiting[number] = task
        self._cluster.down.add(node)

    def _off(self, number: int, *, again: int) -> None:
        task = self._running.pop(number)
        assert task.seats is not None
        self._cluster.give(task.seats)
        task.stop(self.now, again=again)

    def _decide(self, now: int) -> None:
        self.decisions += 1
        waiting = [self._waiting[n] for n in sorted(self._waiting)]
        running = [self._running[n] for n in sorted(self._running)]
        decision = self._policy.decide(now, waiting, running, self._cluster)
        for task in decision.stop:
            number = self._number[id(task)]
            task.preemptions += 1
            self._off(number, again=self._costs.restart_of(task.job))
            self._waiting[number] = task
        for task, seats in decision.start:
            number = self._number[id(task)]
            del self._waiting[number]
            self._cluster.take(seats)
            task.start(now, seats, self._speed(task.job, seats))
            self._running[number] = task
            heapq.heappush(self._ends, (now + task.ends_in(now), number, task.version))

    def _speed(self, job: Job, seats: Seats) -> float:
        """Of the slowest GPUs it has: a gang waits for its last."""
        return min(job.speed_on(self._cluster.kinds[node]) for node in seats)
