"""
The exchange as a policy: the market's own clearing and placement, under the virtual clock.

Every waiting job is a bid and every running one an incumbent that competes in place, with
the rank weight its restart earns it. What differs between the variants is only how an
agent values its job; the market never sees more than a price per GPU. A winner pays its
critical price until it ends; who is displaced is compensated, and has its restart to do.

It calls clearing and placement, not `clear_round`: wallets, reserves and what staying
costs decide nothing here, and a week has twelve thousand rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bidplane.api.money import cost
from bidplane.core.chain import Block, anywhere, block_size
from bidplane.core.market import preemption
from bidplane.core.market.clearing import Contestant, clear
from bidplane.core.market.model import ONE
from bidplane.core.market.room import Room
from bidplane.core.placement import Shelf, place
from bidplane.sim.cluster import Cluster, Seats
from bidplane.sim.engine import Costs, Decision, Policy, Task

_SCALE = 1e15  # prices are whole; this keeps the cheapest apart
_UNKNOWN = 600.0  # GPU-seconds: younger jobs than that are all alike
_AGE_SECONDS = 12 * 3600  # of waiting that doubles a rank; it counts on in the lease
Pricing = Callable[[Task, int], float]  # credits per GPU-second, up to a common factor


class Exchange:
    def __init__(
        self, name: str, pricing: Pricing, *, costs: Costs | None = None, tick: int = 0
    ) -> None:
        self.name, self._pricing, self._tick = name, pricing, tick
        self._costs = costs or Costs()
        self.rent = 0  # micro-credits, of all jobs
        self.compensation = 0
        self._prices: dict[str, int] = {}  # by job that runs: what its GPUs cost
        self._metered = 0

    def decide(
        self, now: int, waiting: Sequence[Task], running: Sequence[Task], cluster: Cluster
    ) -> Decision:
        self._meter(now, running)
        if not waiting:
            return Decision()
        tasks = {str(n): task for n, task in enumerate([*running, *waiting])}
        up = [node for node in range(len(cluster.sizes)) if node not in cluster.down]
        field = [self._contestant(id, task, now) for id, task in tasks.items()]
        room = {str(node): len(cluster.free[node]) for node in up}
        for task in running:
            for node, devices in (task.seats or {}).items():
                room[str(node)] += len(devices)
        cleared = clear(Room(room), field)
        leaving = {c.id: tasks[c.id] for c, _ in cleared.rejected if tasks[c.id].runs}
        seats = place(
            [_shelf(node, cluster, leaving) for node in up],
            [(c.id, c.block) for c in cleared.accepted if not tasks[c.id].runs],
        )
        # Who was outranked by bids that then went elsewhere has nobody to leave for.
        needed = {lease for seat in seats.values() for lease in seat.taken_from}
        stop = [task for id, task in leaving.items() if id in needed]
        for task in stop:
            lost = self._costs.restart_of(task.job)
            self.compensation += cost(self._prices[task.job.name], task.job.gpus, lost)
        for winner in cleared.accepted:
            if winner.id in seats:
                self._prices[tasks[winner.id].job.name] = cleared.critical_price(winner)
        return Decision(stop, [(tasks[id], _seats(seat.devices)) for id, seat in seats.items()])

    def _meter(self, now: int, running: Sequence[Task]) -> None:
        """Rent since the last round, of those who still run."""
        for task in running:
            since = max(self._metered, task.since)
            self.rent += cost(self._prices[task.job.name], task.job.gpus, now - since)
        self._metered = now

    def next_look(self, now: int, *, any_waiting: bool) -> int | None:
        return now + self._tick if self._tick and any_waiting else None

    def looks_at(self, now: int) -> bool:
        return True

    def _contestant(self, id: str, task: Task, now: int) -> Contestant:
        price = max(1, int(self._pricing(task, now) * _SCALE))
        stays = preemption.incumbent_weight(0, self._costs.restart_of(task.job))
        # The most that age may add leaves room for the incumbent's own weight: were both
        # cut at one limit, old jobs would have no lead when they run, and swap for ever.
        age = min(
            ONE + ONE * task.waiting(now) // _AGE_SECONDS, ONE * preemption.MOST_WEIGHT // stays
        )
        weight = age * stays // ONE if task.runs else age
        return Contestant(id, _block(task), price, weight, task.job.arrives, 0)


def _block(task: Task) -> Block:
    if task.seats is None:
        size = block_size(task.job.gpus)
        return anywhere(task.job.gpus) if size is None else Block(size)
    pinned = tuple((str(node), len(devices)) for node, devices in sorted(task.seats.items()))
    if len(pinned) == 1:
        return Block(pinned[0][1], pinned[0][0])
    return Block(0, seats=pinned)


def _shelf(node: int, cluster: Cluster, leaving: dict[str, Task]) -> Shelf:
    gone = {
        id: tuple(_device(node, device) for device in task.seats[node])
        for id, task in leaving.items()
        if task.seats and node in task.seats
    }
    return Shelf(str(node), tuple(_device(node, d) for d in cluster.free[node]), gone)


def _device(node: int, device: int) -> str:
    return f"{node}/{device:02d}"


def _seats(devices: Sequence[str]) -> Seats:
    seats: dict[int, tuple[int, ...]] = {}
    for name in devices:
        node, _, device = name.partition("/")
        seats[int(node)] = (*seats.get(int(node), ()), int(device))
    return seats


# How agents value their jobs


def by_remaining_work(task: Task, now: int) -> float:
    """
    All jobs are worth the same: then the least work left is worth most per GPU-second. To
    that comes the claim of a job that has had little: long ones start while there is still
    other work to fill the GPUs beside them, instead of running alone at the end.
    """
    return 1.0 / (task.job.gpus * max(1, task.left(now))) + by_attained(task, now)


def by_attained(task: Task, now: int) -> float:
    """How long a job takes is not known: what has had little is likely to end soon."""
    return 1.0 / (task.service(now) + _UNKNOWN)


def by_worth(task: Task, now: int) -> float:
    """What it would still be worth if it ran now, per GPU-second it needs."""
    job = task.job
    return job.worth_after(task.waiting(now)) / (job.gpus * max(1, task.left(now)))


EXCHANGES: dict[str, Callable[[], Policy]] = {
    "exchange": lambda: Exchange("exchange", by_remaining_work, tick=600),
    "exchange-blind": lambda: Exchange("exchange-blind", by_attained, tick=300),
    "exchange-worth": lambda: Exchange("exchange-worth", by_worth, tick=600),
}
