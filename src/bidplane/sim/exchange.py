"""
The exchange as a policy: its own engine, ledger and leases, under the virtual clock.

Every job has an autobidder that bids for it from its tenant's wallet. What decides is
`exchange.engine.Engine`, the same that runs in an installation: wallets are refilled, holds
opened, `clear_round` says who wins, who is displaced gets notice and compensation, and all of it
is committed to a ledger, here one in memory. This file is the world around it: it hands in
what a host would show, and lets jobs start and leave as leases say.

Rounds are run when something happened, and at each look of agents while a bid waits; a round in
which no bid stands, after one in which none stood, would change nothing and is left out. Rent is
settled when it is due, round or not. `tests/sim/test_exchange.py` shows that leaving them out
changes nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from bidplane.api.lease import Device, Phase
from bidplane.api.money import GPU_WEIGHT, MICRO, rent
from bidplane.core.chain import CHAIN, block_size
from bidplane.core.lease import Event
from bidplane.core.market import preemption
from bidplane.core.market.metering import cover_seconds, reserve_seconds
from bidplane.exchange.devices import DeviceView
from bidplane.exchange.engine import Engine
from bidplane.exchange.snapshot import AgentView, BidView, PoolView, Snapshot
from bidplane.ledger import Ledger, leases, wallets
from bidplane.ledger.leases import Terms
from bidplane.ledger.records import AccountKind, Lease, lease_id
from bidplane.sim.bidders import Bidder, Rule, Usual, by_attained, by_remaining_work, by_worth
from bidplane.sim.cluster import Cluster, Seats
from bidplane.sim.engine import Costs, Decision, Task
from bidplane.sim.memory import MemoryStore
from bidplane.sim.workload import Job

_START = 1_000_000  # seconds: the ledger's clock when the simulation's is 0
_TOGETHER = 60_000  # milliseconds: rent due within a minute is billed at once
_RAISE = 1.25  # a running job that is worth so much more than it bid offers more
_ANY = "gpu"
_CARRY_HOURS = 24
EPOCH_SECONDS = 300
# Where jobs run for months, rent is not settled every few minutes.
_LONG, _LONG_EPOCH = 30 * 86_400, 6 * 3600
# Micro-credits: a thousandth of what an hour of a GPU is worth on average. What is worth less
# still bids it, and runs where nobody else wants to.
FLOOR = MICRO // 1000


class Market(NamedTuple):
    """How the pool is sold, and how agents behave in it."""

    notice_seconds: int = 30
    look_seconds: int = 300  # how often agents think about their bids while somebody waits
    # What all tenants are granted an hour, in parts of what an hour of all GPUs is worth on the
    # average of all jobs; 0 grants more than anybody can use.
    budget: float = 0.0


class Exchange:
    def __init__(
        self,
        name: str,
        rule: Rule,
        market: Market | None = None,
        *,
        history: bool = False,
        skip: bool = True,
    ) -> None:
        """
        `history` keeps all of the ledger, to be verified. Without `skip` there is a round
        whenever something happens, also if no bid stands.
        """
        self.name, self._rule, self._market = name, rule, market or Market()
        self._every, self._budget = self._market.look_seconds, self._market.budget
        self._skip = skip
        self.store = MemoryStore(history=history)
        self.ledger = Ledger(self.store)
        self.rounds = 0
        self._engine = Engine(self.ledger)
        self._held: dict[str, _Held] = {}  # by lease
        self._by_task: dict[int, _Held] = {}  # by the number of its task
        self._bidders: dict[int, Bidder] = {}
        self._usual = Usual()
        self._wins: dict[int, int] = {}  # by task: a bid wins once, the next has another name
        self._settles: list[tuple[int, str]] = []  # milliseconds, lease
        self._had_bids = False
        self._entry: dict[str, dict[str, int]] = {}  # by pool and class: what one more would cost
        self._thought = -self._every

    def __repr__(self) -> str:
        return f"<Exchange {self.name}, {self.rounds} rounds, {len(self._held)} leases>"

    def prepare(self, tasks: Sequence[Task], cluster: Cluster, costs: Costs) -> None:
        longest = max((task.job.seconds for task in tasks), default=0)
        epoch = EPOCH_SECONDS if longest < _LONG else _LONG_EPOCH
        terms = Terms(self._market.notice_seconds, costs.restart, epoch)
        self._restart = costs.restart
        self._cover = cover_seconds(terms.epoch_seconds, terms.notice_seconds)
        self._tasks = tasks
        self._mixed = len(set(cluster.kinds)) > 1
        self._number = {id(task): number for number, task in enumerate(tasks)}
        jobs = [task.job for task in tasks]
        # Money has a unit: an hour of a GPU is worth one credit, on the average of all jobs.
        worth = sum(job.value for job in jobs) or 1.0
        self._unit = MICRO * sum(job.work for job in jobs) / 3600 / worth
        self._agents = _agents(jobs, self._unit, self._budget, sum(cluster.sizes))
        self._pools = tuple(_pool(kind, terms) for kind in sorted(set(cluster.kinds)))
        self._devices = [
            tuple(_device(cluster.kinds[node], node, number) for number in range(size))
            for node, size in enumerate(cluster.sizes)
        ]
        # The owner seeds each fund with one eviction of the whole pool, at what it is worth.
        with self.ledger.commit(_at(0)) as commit:
            for kind in sorted(set(cluster.kinds)):
                sizes = zip(cluster.kinds, cluster.sizes, strict=True)
                gpus = sum(size for other, size in sizes if other == kind)
                wanted = preemption.seed(MICRO, gpus, terms.notice_seconds, terms.restart_seconds)
                wallets.seed_fund(commit, pool=kind, wanted=wanted)

    # What the simulation asks

    def next_look(self, now: int, *, any_waiting: bool) -> int | None:
        moments = [held.leaves for held in self._held.values() if held.leaves is not None]
        if any_waiting or (self._mixed and self._held):  # who is on slower GPUs looks for faster
            moments.append((now // self._every + 1) * self._every)
        if self._budget and self._settles:  # who cannot pay must get its notice in time
            moments.append(max(now + 1, self._settles[0][0] // 1000 - _START))
        return min(moments, default=None)

    def looks_at(self, now: int) -> bool:
        return True

    def decide(
        self, now: int, waiting: Sequence[Task], running: Sequence[Task], cluster: Cluster
    ) -> Decision:
        self._settle_until(_at(now))
        left, stop = self._who_leaves(now)
        bids = [self._bid(task, now) for task in (*waiting, *stop) if self._is_free(task)]
        if (bids or self._mixed) and now >= self._thought + self._every:
            self._thought = now
            raised, tired = self._second_thoughts(running, now)
            left += [self._forget(self._by_task[self._number[id(task)]], now) for task in tired]
            bids += raised + [self._bid(task, now) for task in tired]
            stop += tired
        contested = bool(bids)
        if contested or self._had_bids or self._mixed or not self._skip:
            self._round(now, bids, left, cluster)
        elif left:
            with self.ledger.commit(_at(now)) as commit:
                for lease in left:
                    leases.release(commit, lease, Event.LEFT)
        self._had_bids = contested
        return Decision(stop, self._start_ready(now))

    # One round

    def _round(
        self, now: int, bids: Sequence[BidView], left: Sequence[str], cluster: Cluster
    ) -> None:
        up = (self._devices[n] for n in range(len(cluster.sizes)) if n not in cluster.down)
        snapshot = Snapshot(
            agents=self._agents,
            pools=self._pools,
            bids=tuple(bids),
            devices=tuple(device for node in up for device in node),
            left=frozenset(left),
        )
        report = self._engine.run_round(snapshot, _at(now) / 1000)
        self.rounds += 1
        self._entry = {lot.lot: lot.classes for lot in report.result.lots}
        for won in report.result.won:
            held = _Held(lease_id(won.ask), int(won.ask.partition("-")[0]))
            self._held[held.lease] = self._by_task[held.number] = held
            self._wins[held.number] = self._wins.get(held.number, 0) + 1
        for held in list(self._held.values()):
            lease = self._lease(held.lease)
            if lease.phase is Phase.DRAINING and held.leaves is None:
                held.leaves = lease.reclaim_at // 1000 - _START
            elif lease.phase is Phase.RELEASED:  # a device was gone before it began
                del self._held[held.lease], self._by_task[held.number]
        self._check()

    def _check(self) -> None:
        """Moving money neither makes nor loses any: after each round all accounts make zero."""
        accounts = self.ledger.accounts()
        total = sum(account.posted for account in accounts)
        if total:
            raise RuntimeError(f"{self.name}: all balances together make {total}, not zero")
        for account in accounts:
            if account.kind is not AccountKind.MINT and not 0 <= account.held <= account.posted:
                raise RuntimeError(f"{self.name}: {account} has promised more than it has")

    def _start_ready(self, now: int) -> list[tuple[Task, Seats]]:
        """Who has won and waits for nobody to leave begins at once, and pays from now on."""
        ready = [h for h in self._held.values() if not h.runs and self._lease(h.lease).ready]
        if not ready:
            return []
        with self.ledger.commit(_at(now)) as commit:
            for held in ready:
                held.runs = True
                lease = leases.claim(commit, held.lease)
                heapq.heappush(self._settles, (self._due(lease, lease.settled_at), lease.id))
        return [(self._tasks[h.number], _seats(self._lease(h.lease).devices)) for h in ready]

    def _who_leaves(self, now: int) -> tuple[list[str], list[Task]]:
        """The leases of jobs that are over, or whose notice is; and of the latter, the jobs."""
        left, stop = [], []
        for held in list(self._held.values()):
            task = self._tasks[held.number]
            if held.runs and not task.runs:
                left.append(self._forget(held, now))
            elif held.leaves is not None and held.leaves <= now:
                left.append(self._forget(held, now))
                stop.append(task)
        return left, stop

    def _forget(self, held: _Held, now: int) -> str:
        del self._held[held.lease], self._by_task[held.number]
        self._bidders[held.number].spent += _paid(self._lease(held.lease), _at(now))
        return held.lease

    def _lease(self, id: str) -> Lease:
        found = self.ledger.lease(id)
        if found is None:
            raise RuntimeError(f"{self.name}: the ledger has no lease {id}")
        return found

    # What is bid

    def _is_free(self, task: Task) -> bool:
        return self._number[id(task)] not in self._by_task

    def _bid(self, task: Task, now: int) -> BidView:
        number = self._number[id(task)]
        if number not in self._bidders:
            self._usual.add(task.job.seconds)
            self._bidders[number] = Bidder(
                task,
                self._rule,
                self._usual,
                worth=max(1, int(task.job.value * self._unit)),
                start=_at(task.job.arrives),
                cover=self._cover,
            )
        uid = f"{number}-{self._wins.get(number, 0)}"
        price = self._bidders[number].quote(now, at=_at(now), spent=0).price
        return _view(task.job, uid, price, created=_START + task.since)

    def _second_thoughts(
        self, running: Sequence[Task], now: int
    ) -> tuple[list[BidView], list[Task]]:
        """
        Jobs that became worth more than they bid offer more; those for whom staying costs
        more than it is worth to them, or that can have faster GPUs, give theirs back.
        """
        raised, tired = [], []
        for task in running:
            held = self._by_task.get(self._number[id(task)])
            if held is None or held.leaves is not None:
                continue
            lease = self._lease(held.lease)
            quote = self._bidders[held.number].quote(now, at=_at(now), spent=_paid(lease, _at(now)))
            value, price = (int(part * task.speed) for part in quote)
            if price > _RAISE * lease.max_price:
                raised.append(_view(task.job, lease.bid_uid, quote.price))
            elif max(value, FLOOR) < lease.price or self._moves(task, quote.price, now):
                tired.append(task)
        return raised, tired

    def _moves(self, task: Task, price: int, now: int) -> bool:
        """
        Whether it would get faster GPUs for what it would offer for them, and be done clearly
        sooner on them, its restart included.
        """
        job, size = task.job, str(block_size(task.job.gpus, CHAIN))
        for kind, speed in job.speeds.items():
            entry = self._entry.get(kind, {}).get(size)
            if entry is None or price * speed <= _RAISE * entry:
                continue
            left = task.left(now)
            if _RAISE * (left / speed + self._restart) < left / task.speed:
                return True
        return False

    # Rent between rounds

    def _settle_until(self, at: int) -> None:
        """
        Bill what came due since the last moment. Who is due a little later is billed along with
        the first: a commit for all of them, and next time they are due together.
        """
        while self._settles and self._settles[0][0] <= at:
            first = self._settles[0][0]
            due: list[str] = []
            while self._settles and self._settles[0][0] <= first + _TOGETHER:
                due.append(heapq.heappop(self._settles)[1])
            due = [id for id in due if id in self._held and self._held[id].leaves is None]
            with self.ledger.commit(first) as commit:
                for id in due:
                    why = leases.settle(commit, id)
                    if why is not None:
                        leases.notice(commit, id, why)
            for id in due:
                lease = self._lease(id)
                if lease.phase is Phase.DRAINING:
                    self._held[id].leaves = lease.reclaim_at // 1000 - _START
                else:
                    heapq.heappush(self._settles, (self._due(lease, first), id))

    def _due(self, lease: Lease, at: int) -> int:
        """When it must be looked at again, whatever its price becomes until then."""
        hold = self.ledger.hold(lease.hold)
        left = (hold.amount if hold else 0) - lease.meter(at).balance
        least = rent(lease.max_price, lease.weight, reserve_seconds(lease.notice_seconds))
        lasts = max(1, (left - least) * 3600 * GPU_WEIGHT // (lease.max_price * lease.weight))
        return min(at + 1000 * lasts, lease.settled_at + 1000 * lease.epoch_seconds)


@dataclass
class _Held:
    """A lease that a job has, or will have once it is ready."""

    lease: str
    number: int  # of its task
    runs: bool = False
    leaves: int | None = None  # when its notice is over


def _at(now: int) -> int:
    return 1000 * (_START + now)


def _paid(lease: Lease, at: int) -> int:
    return lease.charged + max(0, lease.meter(at).balance) - lease.compensation


def _view(job: Job, uid: str, price: int, *, created: int = 0) -> BidView:
    """Of GPUs that differ, one alternative for each kind: as much less as it is slower."""
    kinds = sorted(job.speeds, key=lambda kind: -job.speeds[kind]) or [_ANY]
    first, *rest = (
        BidView(
            uid=uid,
            namespace="sim",
            name=uid,
            agent=job.tenant or _ANY,
            gpus=job.gpus,
            price=max(FLOOR, int(price * job.speed_on(kind))),
            pool=kind,
            spread=job.gpus > CHAIN[0],
            created=created,
        )
        for kind in kinds
    )
    return msgspec.structs.replace(first, otherwise=tuple(rest)) if rest else first


def _agents(jobs: Sequence[Job], unit: float, budget: float, gpus: int) -> tuple[AgentView, ...]:
    """A tenant's weight is that of its most important job; by weight it is granted credits."""
    weights: dict[str, int] = {}
    worth: dict[str, float] = {}
    for job in jobs:
        name = job.tenant or _ANY
        weights[name] = max(weights.get(name, 1), 1 + job.priority)
        worth[name] = worth.get(name, 0.0) + job.value
    pot = budget * gpus * MICRO
    total = sum(weights.values())
    found = []
    for name, weight in sorted(weights.items()):
        # Without a budget each hour brings what all its jobs are worth, and holds for them.
        refill = int(pot * weight / total) if budget else 2 + int(100 * worth[name] * unit)
        cap = _CARRY_HOURS * refill
        found.append(AgentView(name=name, uid=name, owner=name, refill=refill, cap=cap))
    return tuple(found)


def _pool(kind: str, terms: Terms) -> PoolView:
    """Everything is sold, however little is offered: a target of all keeps the base price down."""
    return PoolView(name=kind, product=kind, floor=FLOOR, target_percent=100, terms=terms)


def _device(kind: str, node: int, number: int) -> DeviceView:
    device = Device(node=f"n{node:04d}", driver="sim", pool=kind, name=f"{number:02d}")
    return DeviceView(device=device, product=kind, domain=device.node)


def _seats(devices: Sequence[Device]) -> Seats:
    seats: dict[int, tuple[int, ...]] = {}
    for device in devices:
        node = int(device.node[1:])
        seats[node] = (*seats.get(node, ()), int(device.name))
    return seats


RULES: dict[str, Rule] = {
    "exchange": by_remaining_work,
    "exchange-blind": by_attained,
    "exchange-worth": by_worth,
}
