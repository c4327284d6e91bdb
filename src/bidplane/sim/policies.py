"""
The queues others use, each in the few lines that make it different.

FIFO and SJF start jobs in order and stop at the first that does not fit. The others walk
an order of all jobs, waiting and running, against the number of GPUs: who is inside may
run, who runs outside is preempted; then the waiting ones are placed as far as they fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bidplane.errors import UserError
from bidplane.sim.cluster import Cluster, Seats
from bidplane.sim.engine import Costs, Decision, Policy, Task
from bidplane.sim.exchange import RULES, Exchange, Market

TIRESIAS_TICK = 60
TIRESIAS_QUEUE = 18_000  # GPU-seconds: who has had more goes to the second queue

Key = Callable[[Task, int], Any]


class Queue:
    """Starts in the order of `key`; nobody is preempted."""

    def __init__(self, name: str, key: Key, *, skip: bool = False) -> None:
        self.name, self._key, self._skip = name, key, skip

    def prepare(self, tasks: Sequence[Task], cluster: Cluster, costs: Costs) -> None:
        pass

    def decide(
        self, now: int, waiting: Sequence[Task], running: Sequence[Task], cluster: Cluster
    ) -> Decision:
        trial, start = cluster.copy(), []
        for task in sorted(waiting, key=lambda task: self._key(task, now)):
            seats = trial.find(task.job.gpus, task.job.speeds)
            if seats is not None:
                trial.take(seats)
                start.append((task, seats))
            elif not self._skip:
                break
        return Decision(start=start)

    def next_look(self, now: int, *, any_waiting: bool) -> int | None:
        return None

    def looks_at(self, now: int) -> bool:
        return True


class Preemptive:
    """Whoever is first in the order has the GPUs."""

    def __init__(
        self,
        name: str,
        order: Callable[[Sequence[Task], Sequence[Task], int], list[Task]],
        *,
        tick: int = 1,
    ) -> None:
        self.name, self._order, self._tick = name, order, tick

    def prepare(self, tasks: Sequence[Task], cluster: Cluster, costs: Costs) -> None:
        pass

    def decide(
        self, now: int, waiting: Sequence[Task], running: Sequence[Task], cluster: Cluster
    ) -> Decision:
        quota, stop, chosen = cluster.up, [], []
        for task in self._order(waiting, running, now):
            if task.job.gpus <= quota:
                quota -= task.job.gpus
                if not task.runs:
                    chosen.append(task)
            elif task.runs:
                stop.append(task)
        return Decision(stop, place(chosen, stop, cluster))

    def next_look(self, now: int, *, any_waiting: bool) -> int | None:
        if self._tick == 1:
            return None  # nothing changes its order but arrivals and ends
        return (now // self._tick + 1) * self._tick

    def looks_at(self, now: int) -> bool:
        return now % self._tick == 0


def place(
    chosen: Sequence[Task], stop: Sequence[Task], cluster: Cluster
) -> list[tuple[Task, Seats]]:
    """Seats for as many of `chosen` as fit once those of `stop` have left."""
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


def _by(key: Key) -> Callable[[Sequence[Task], Sequence[Task], int], list[Task]]:
    def order(waiting: Sequence[Task], running: Sequence[Task], now: int) -> list[Task]:
        return sorted([*waiting, *running], key=lambda task: key(task, now))

    return order


def _tiresias(waiting: Sequence[Task], running: Sequence[Task], now: int) -> list[Task]:
    everybody = sorted([*running, *waiting], key=lambda task: task.job.arrives)
    return sorted(everybody, key=lambda task: task.service(now) > TIRESIAS_QUEUE)


def _priority(waiting: Sequence[Task], running: Sequence[Task], now: int) -> list[Task]:
    everybody = [*running, *waiting]  # among equals, who runs goes on
    return sorted(everybody, key=lambda t: (-t.job.priority, not t.runs, t.job.arrives))


def _fair(waiting: Sequence[Task], running: Sequence[Task], now: int) -> list[Task]:
    """
    The next GPUs go to the tenant that has least. GPUs are the only resource here, so a
    tenant's share of them is its dominant share.
    """
    queues: dict[str, list[Task]] = {}
    for task in sorted([*running, *waiting], key=lambda t: (not t.runs, t.job.arrives)):
        queues.setdefault(task.job.tenant, []).append(task)
    has = dict.fromkeys(queues, 0)
    order = []
    for queue in queues.values():
        queue.reverse()
    while queues:
        tenant = min(queues, key=lambda name: (has[name], name))
        task = queues[tenant].pop()
        order.append(task)
        has[tenant] += task.job.gpus
        if not queues[tenant]:
            del queues[tenant]
    return order


QUEUES: dict[str, Callable[[], Policy]] = {
    "fifo": lambda: Queue("fifo", lambda t, _: t.job.arrives),
    "backfill": lambda: Queue("backfill", lambda t, _: t.job.arrives, skip=True),
    "sjf": lambda: Queue("sjf", lambda t, _: t.job.seconds),
    "priority": lambda: Preemptive("priority", _priority),
    "fair": lambda: Preemptive("fair", _fair, tick=60),
    "las": lambda: Preemptive("las", _tiresias, tick=TIRESIAS_TICK),
    "srtf": lambda: Preemptive("srtf", _by(lambda t, now: t.left(now))),
}


def find(name: str, market: Market | None = None) -> Policy:
    """`market`: the exchange's terms; the others have none."""
    if name in RULES:
        return Exchange(name, RULES[name], market)
    if name in QUEUES:
        return QUEUES[name]()
    raise UserError(f"there is no policy {name!r}: choose one of {', '.join([*QUEUES, *RULES])}")
