"""
The queues that other schedulers use, each in the few lines that make it different.

FIFO and SJF start jobs in order and stop at the first that does not fit. The others rank all jobs,
waiting and running: those that fit into the number of GPUs may run, running ones beyond it are
preempted; then the waiting ones are placed as far as they fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bidplane.errors import UserError
from bidplane.sim.cluster import Seats, SimulatedCluster
from bidplane.sim.engine import Costs, SchedulingDecision, SchedulingPolicy, Task
from bidplane.sim.exchange import RULES, MarketRules, SimulatedExchange

TIRESIAS_TICK = 60
TIRESIAS_QUEUE = 18_000  # GPU-seconds of service after which a job goes to the second queue

Key = Callable[[Task, int], Any]


class Queue:
    """Starts jobs in the order of `key`, without preemption."""

    def __init__(self, name: str, key: Key, *, skip: bool = False) -> None:
        self.name, self._key, self._skip = name, key, skip

    def prepare(self, tasks: Sequence[Task], cluster: SimulatedCluster, costs: Costs) -> None:
        pass

    def decide(
        self, now: int, waiting: Sequence[Task], running: Sequence[Task], cluster: SimulatedCluster
    ) -> SchedulingDecision:
        trial, start = cluster.copy(), []
        for task in sorted(waiting, key=lambda task: self._key(task, now)):
            seats = trial.find(task.job.gpus, task.job.speeds)
            if seats is not None:
                trial.take(seats)
                start.append((task, seats))
            elif not self._skip:
                break
        return SchedulingDecision(start=start)

    def next_decision(self, now: int, *, any_waiting: bool) -> int | None:
        return None

    def decides_at(self, now: int) -> bool:
        return True


class Preemptive:
    """Gives the GPUs to the first jobs in the order."""

    def __init__(
        self,
        name: str,
        order: Callable[[Sequence[Task], Sequence[Task], int], list[Task]],
        *,
        tick: int = 1,
    ) -> None:
        self.name, self._order, self._tick = name, order, tick

    def prepare(self, tasks: Sequence[Task], cluster: SimulatedCluster, costs: Costs) -> None:
        pass

    def decide(
        self, now: int, waiting: Sequence[Task], running: Sequence[Task], cluster: SimulatedCluster
    ) -> SchedulingDecision:
        quota, stop, chosen = cluster.up, [], []
        for task in self._order(waiting, running, now):
            if task.job.gpus <= quota:
                quota -= task.job.gpus
                if not task.runs:
                    chosen.append(task)
            elif task.runs:
                stop.append(task)
        return SchedulingDecision(stop, place(chosen, stop, cluster))

    def next_decision(self, now: int, *, any_waiting: bool) -> int | None:
        if self._tick == 1:
            return None  # only arrivals and ends change its order
        return (now // self._tick + 1) * self._tick

    def decides_at(self, now: int) -> bool:
        return now % self._tick == 0


def place(
    chosen: Sequence[Task], stop: Sequence[Task], cluster: SimulatedCluster
) -> list[tuple[Task, Seats]]:
    """The GPUs for as many of `chosen` as fit once those of `stop` have left."""
    trial = cluster.copy()
    for task in stop:
        assert task.seats is not None
        trial.give(task.seats)
    start = []
    for task in chosen:
        seats = trial.find(task.job.gpus, task.job.speeds)
        if seats is not None:
            trial.take(seats)
            start.append((task, seats))
    return start


def _ordered_by(key: Key) -> Callable[[Sequence[Task], Sequence[Task], int], list[Task]]:
    """An order of all tasks by that key."""

    def order(waiting: Sequence[Task], running: Sequence[Task], now: int) -> list[Task]:
        return sorted([*waiting, *running], key=lambda task: key(task, now))

    return order


def _tiresias(waiting: Sequence[Task], running: Sequence[Task], now: int) -> list[Task]:
    """Tiresias' order: two queues by attained service, each by arrival."""
    tasks = sorted([*running, *waiting], key=lambda task: task.job.arrives)
    return sorted(tasks, key=lambda task: task.service(now) > TIRESIAS_QUEUE)


def _priority(waiting: Sequence[Task], running: Sequence[Task], now: int) -> list[Task]:
    """By priority, running tasks before waiting ones."""
    tasks = [*running, *waiting]  # among equals, running ones continue
    return sorted(tasks, key=lambda t: (-t.job.priority, not t.runs, t.job.arrives))


def _fair(waiting: Sequence[Task], running: Sequence[Task], now: int) -> list[Task]:
    """
    The order in which the next GPUs go to the tenant that has least. GPUs are the only resource
    here, so a tenant's share of them is its dominant share.
    """
    queues: dict[str, list[Task]] = {}
    for task in sorted([*running, *waiting], key=lambda t: (not t.runs, t.job.arrives)):
        queues.setdefault(task.job.tenant, []).append(task)
    gpus_by_tenant = dict.fromkeys(queues, 0)
    order = []
    for queue in queues.values():
        queue.reverse()
    while queues:
        tenant = min(queues, key=lambda name: (gpus_by_tenant[name], name))
        task = queues[tenant].pop()
        order.append(task)
        gpus_by_tenant[tenant] += task.job.gpus
        if not queues[tenant]:
            del queues[tenant]
    return order


QUEUES: dict[str, Callable[[], SchedulingPolicy]] = {
    "fifo": lambda: Queue("fifo", lambda t, _: t.job.arrives),
    "backfill": lambda: Queue("backfill", lambda t, _: t.job.arrives, skip=True),
    "sjf": lambda: Queue("sjf", lambda t, _: t.job.seconds),
    "priority": lambda: Preemptive("priority", _priority),
    "fair": lambda: Preemptive("fair", _fair, tick=60),
    "las": lambda: Preemptive("las", _tiresias, tick=TIRESIAS_TICK),
    "srtf": lambda: Preemptive("srtf", _ordered_by(lambda t, now: t.left(now))),
}


def find(name: str, market: MarketRules | None = None) -> SchedulingPolicy:
    """The policy of that name. `market`: the exchange's terms; the others have none."""
    if name in RULES:
        return SimulatedExchange(name, RULES[name], market)
    if name in QUEUES:
        return QUEUES[name]()
    raise UserError(f"there is no policy {name!r}: choose one of {', '.join([*QUEUES, *RULES])}")
