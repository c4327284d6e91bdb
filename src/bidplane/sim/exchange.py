"""
The exchange as a policy: its own engine, ledger and leases, under the virtual clock.

Every job has an autobidder that bids for it from its tenant's wallet. The decisions are made by
`exchange.engine.Engine`, the same that runs in an installation: wallets are refilled, holds opened,
`clear_round` finds the winners, displaced leases get notice and compensation, and all of it is
committed to a ledger, here one in memory. This file is the engine's environment: it passes in the
state that a host would show, and starts and stops jobs as their leases do.

Rounds run after events, and periodically while a bid waits. A round without bids, after another
without bids, would change nothing and is skipped (`tests/sim/test_exchange.py` shows that). Rent is
settled when it is due, round or not.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from bidplane.api.lease import DeviceRef, Phase
from bidplane.api.money import GPU_WEIGHT, LARGEST_PRICE, MICRO, rent
from bidplane.core.devices.chain import CHAIN, block_size
from bidplane.core.leases.lifecycle import LeaseEvent
from bidplane.core.market.pricing.metering import cover_seconds, reserve_seconds
from bidplane.exchange.engine import Engine
from bidplane.exchange.round.devices import DeviceView
from bidplane.exchange.snapshot import AgentView, BidView, HostSnapshot, PoolView
from bidplane.ledger import Ledger, leases
from bidplane.ledger.leases import Terms
from bidplane.ledger.records import AccountKind, Lease, lease_id, wallet_of
from bidplane.sim.bidders import (
    AverageLength,
    JobBidder,
    Rule,
    by_attained_service,
    by_remaining_work,
    by_worth,
)
from bidplane.sim.cluster import Seats, SimulatedCluster
from bidplane.sim.engine import Costs, SchedulingDecision, Task
from bidplane.sim.memory import MemoryStore
from bidplane.sim.workload import Job

_START = 1_000_000  # seconds: the ledger's clock when the simulation's is 0
_TOGETHER = 60_000  # milliseconds: rent due within a minute is billed in one commit
_RAISE = 1.25  # a running job whose value exceeds its bid by this factor raises it
_ANY = "gpu"
_CARRY_HOURS = 24
EPOCH_SECONDS = 300
# Where jobs run for months, rent is settled less often.
_LONG, _LONG_EPOCH = 30 * 86_400, 6 * 3600
# Micro-credits: a thousandth of the average value of a GPU-hour. Jobs worth less still bid this
# much, and run where nobody else wants to.
FLOOR = MICRO // 1000


class MarketRules(NamedTuple):
    """The terms of sale, and how agents behave."""

    notice_seconds: int = 30
    look_seconds: int = 300  # between two reviews of all bids while a job waits
    # The credits granted to all tenants per hour, as a multiple of the average value of an hour of
    # all GPUs; 0 grants more than anybody can use.
    budget: float = 0.0


class SimulatedExchange:
    """The market as a scheduling policy."""

    def __init__(
        self,
        name: str,
        rule: Rule,
        market: MarketRules | None = None,
        *,
        history: bool = False,
        skip: bool = True,
    ) -> None:
        """
        Set up the policy. `history` keeps all of the ledger, to be verified. Without `skip` a
        round runs at every event, even without bids.
        """
        self.name, self._rule, self._market = name, rule, market or MarketRules()
        self._every, self._budget = self._market.look_seconds, self._market.budget
        self._skip = skip
        self.store = MemoryStore(history=history)
        self.ledger = Ledger(self.store)
        self.rounds = 0
        self._engine = Engine(self.ledger)
        self._held_leases: dict[str, _HeldLease] = {}  # by lease
        self._by_task: dict[int, _HeldLease] = {}  # by the number of its task
        self._bidders: dict[int, JobBidder] = {}
        self._average = AverageLength()
        self._task_of_bid: dict[str, int] = {}  # the number of its task
        self._wins: dict[int, int] = {}  # by task: a bid wins once, the next has another name
        self._settles: list[tuple[int, str]] = []  # milliseconds, lease
        self._previous_had_bids = False
        self._entry_prices: dict[
            str, dict[str, int]
        ] = {}  # by pool and class: what one more would cost
        self._reviewed_at = -self._every

    def __repr__(self) -> str:
        return f"<Exchange {self.name}, {self.rounds} rounds, {len(self._held_leases)} leases>"

    def prepare(self, tasks: Sequence[Task], cluster: SimulatedCluster, costs: Costs) -> None:
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
        self._uids = {agent.name: agent.uid for agent in self._agents}
        self._pools = tuple(_pool(kind, terms) for kind in sorted(set(cluster.kinds)))
        self._devices = [
            tuple(_device(cluster.kinds[node], node, number) for number in range(size))
            for node, size in enumerate(cluster.sizes)
        ]

    # The policy's methods

    def next_decision(self, now: int, *, any_waiting: bool) -> int | None:
        moments = [
            held_lease.leaves
            for held_lease in self._held_leases.values()
            if held_lease.leaves is not None
        ]
        if any_waiting or (
            self._mixed and self._held_leases
        ):  # jobs on slower GPUs look for faster ones
            moments.append((now // self._every + 1) * self._every)
        if self._budget and self._settles:  # an unfunded lease must get its notice in time
            moments.append(max(now + 1, self._settles[0][0] // 1000 - _START))
        return min(moments, default=None)

    def decides_at(self, now: int) -> bool:
        return True

    def decide(
        self, now: int, waiting: Sequence[Task], running: Sequence[Task], cluster: SimulatedCluster
    ) -> SchedulingDecision:
        self._settle_until(_milliseconds(now))
        ended_leases, stop = self._collect_ended(now)
        bids = [self._bid(task, now) for task in (*waiting, *stop) if self._is_free(task)]
        if (bids or self._mixed) and now >= self._reviewed_at + self._every:
            self._reviewed_at = now
            raised, giving_up = self._reconsider(running, now)
            ended_leases += [
                self._forget(self._by_task[self._number[id(task)]], now) for task in giving_up
            ]
            bids += raised + [self._bid(task, now) for task in giving_up]
            stop += giving_up
        contested = bool(bids)
        if contested or self._previous_had_bids or self._mixed or not self._skip:
            self._round(now, bids, ended_leases, cluster)
        elif ended_leases:
            with self.ledger.commit(_milliseconds(now)) as commit:
                for lease in ended_leases:
                    leases.release(commit, lease, LeaseEvent.LEFT)
        self._previous_had_bids = contested
        return SchedulingDecision(stop, self._start_ready(now))

    # One round

    def _round(
        self,
        now: int,
        bids: Sequence[BidView],
        ended_leases: Sequence[str],
        cluster: SimulatedCluster,
    ) -> None:
        """Run a market round and record who won, who must leave, and the prices."""
        node_devices = (
            self._devices[n] for n in range(len(cluster.sizes)) if n not in cluster.down
        )
        snapshot = HostSnapshot(
            agents=self._agents,
            pools=self._pools,
            bids=tuple(bids),
            devices=tuple(device for node in node_devices for device in node),
            left=frozenset(ended_leases),
        )
        report = self._engine.run_round(snapshot, _milliseconds(now) / 1000)
        self.rounds += 1
        self._entry_prices = {lot.lot: lot.classes for lot in report.result.lots}
        for won in report.result.won:
            held_lease = _HeldLease(lease_id(won.ask), self._task_of_bid.pop(won.ask))
            self._held_leases[held_lease.lease] = self._by_task[held_lease.number] = held_lease
            self._wins[held_lease.number] = self._wins.get(held_lease.number, 0) + 1
        for held_lease in list(self._held_leases.values()):
            lease = self._lease(held_lease.lease)
            if lease.phase is Phase.DRAINING and held_lease.leaves is None:
                held_lease.leaves = lease.reclaim_at // 1000 - _START
            elif lease.phase is Phase.RELEASED:  # a device was gone before it began
                del self._held_leases[held_lease.lease], self._by_task[held_lease.number]
        self._check()

    def _check(self) -> None:
        """Raise if money was made or lost: after each round all balances sum to zero."""
        accounts = self.ledger.accounts()
        total = sum(account.posted for account in accounts)
        if total:
            raise RuntimeError(f"{self.name}: all balances sum to {total}, not zero")
        for account in accounts:
            if account.kind is not AccountKind.MINT and not 0 <= account.held <= account.posted:
                raise RuntimeError(f"{self.name}: {account} has promised more than it has")

    def _start_ready(self, now: int) -> list[tuple[Task, Seats]]:
        """Start the jobs whose won leases are ready; they pay from now on."""
        ready = [h for h in self._held_leases.values() if not h.runs and self._lease(h.lease).ready]
        if not ready:
            return []
        with self.ledger.commit(_milliseconds(now)) as commit:
            for held_lease in ready:
                held_lease.runs = True
                lease = leases.claim(commit, held_lease.lease)
                heapq.heappush(self._settles, (self._due(lease, lease.settled_at), lease.id))
        return [(self._tasks[h.number], _seats(self._lease(h.lease).devices)) for h in ready]

    def _collect_ended(self, now: int) -> tuple[list[str], list[Task]]:
        """
        The leases of jobs that are done or whose notice is over; and of the latter, the jobs.
        """
        ended_leases, stop = [], []
        for held_lease in list(self._held_leases.values()):
            task = self._tasks[held_lease.number]
            if held_lease.runs and not task.runs:
                ended_leases.append(self._forget(held_lease, now))
            elif held_lease.leaves is not None and held_lease.leaves <= now:
                ended_leases.append(self._forget(held_lease, now))
                stop.append(task)
        return ended_leases, stop

    def _forget(self, held_lease: _HeldLease, now: int) -> str:
        """Drop a held lease and add its cost to what its job has spent; return its id."""
        del self._held_leases[held_lease.lease], self._by_task[held_lease.number]
        self._bidders[held_lease.number].spent += _paid(
            self._lease(held_lease.lease), _milliseconds(now)
        )
        return held_lease.lease

    def _lease(self, id: str) -> Lease:
        """The ledger's lease of that id."""
        lease = self.ledger.lease(id)
        if lease is None:
            raise RuntimeError(f"{self.name}: the ledger has no lease {id}")
        return lease

    # Bids

    def _is_free(self, task: Task) -> bool:
        """Return True if the task holds no lease."""
        return self._number[id(task)] not in self._by_task

    def _bid(self, task: Task, now: int) -> BidView:
        """The task's present bid."""
        number = self._number[id(task)]
        if number not in self._bidders:
            self._average.add(task.job.seconds)
            self._bidders[number] = JobBidder(
                task,
                self._rule,
                self._average,
                worth=max(1, int(task.job.value * self._unit)),
                start=_milliseconds(task.job.arrives),
                cover=self._cover,
            )
        uid = f"{number}-{self._wins.get(number, 0)}"
        self._task_of_bid[uid] = number
        price = self._bidders[number].quote(now, at=_milliseconds(now), spent=0).price
        return _view(
            task.job,
            uid,
            min(price, self._highest_covered_price(task.job)),
            created=_START + task.since,
        )

    def _highest_covered_price(self, job: Job) -> int:
        """
        The highest price at which the tenant's wallet covers an epoch. A higher bid would win
        nothing, not even free GPUs.
        """
        wallet = self.ledger.account(wallet_of(self._uids[job.tenant or _ANY]))
        if wallet is None:  # not opened yet: its first round grants credits
            return LARGEST_PRICE
        weight = GPU_WEIGHT * (block_size(job.gpus, CHAIN) or job.gpus)
        return wallet.available * 3600 * GPU_WEIGHT // (weight * self._cover)

    def _reconsider(self, running: Sequence[Task], now: int) -> tuple[list[BidView], list[Task]]:
        """
        Raise the bids of jobs whose value now exceeds their bid; return those bids, and the jobs
        that give up their GPUs: since these cost more than they are worth to them, or faster ones
        can be had.
        """
        raised, giving_up = [], []
        for task in running:
            held_lease = self._by_task.get(self._number[id(task)])
            if held_lease is None or held_lease.leaves is not None:
                continue
            lease = self._lease(held_lease.lease)
            quote = self._bidders[held_lease.number].quote(
                now, at=_milliseconds(now), spent=_paid(lease, _milliseconds(now))
            )
            value, price = (int(part * task.speed) for part in quote)
            if price > _RAISE * lease.max_price:
                raised.append(_view(task.job, lease.bid_uid, quote.price))
            elif max(value, FLOOR) < lease.price or self._would_move(task, quote.price, now):
                giving_up.append(task)
        return raised, giving_up

    def _would_move(self, task: Task, price: int, now: int) -> bool:
        """
        Return True if the job would get faster GPUs at its price, and end clearly sooner on them,
        restart included.
        """
        job, size = task.job, str(block_size(task.job.gpus, CHAIN))
        for kind, speed in job.speeds.items():
            entry = self._entry_prices.get(kind, {}).get(size)
            if entry is None or price * speed <= _RAISE * entry:
                continue
            remaining = task.left(now)
            if _RAISE * (remaining / speed + self._restart) < remaining / task.speed:
                return True
        return False

    # Rent between rounds

    def _settle_until(self, at: int) -> None:
        """
        Bill the rent that came due since the last event. Leases due a little later are billed with
        the first, in one commit, and fall due together from then on.
        """
        while self._settles and self._settles[0][0] <= at:
            first = self._settles[0][0]
            due: list[str] = []
            while self._settles and self._settles[0][0] <= first + _TOGETHER:
                due.append(heapq.heappop(self._settles)[1])
            due = [
                id for id in due if id in self._held_leases and self._held_leases[id].leaves is None
            ]
            with self.ledger.commit(first) as commit:
                for id in due:
                    reason = leases.settle(commit, id)
                    if reason is not None:
                        leases.notice(commit, id, reason)
            for id in due:
                lease = self._lease(id)
                if lease.phase is Phase.DRAINING:
                    self._held_leases[id].leaves = lease.reclaim_at // 1000 - _START
                else:
                    heapq.heappush(self._settles, (self._due(lease, first), id))

    def _due(self, lease: Lease, at: int) -> int:
        """The time of the lease's next settlement, whatever its price becomes until then."""
        hold = self.ledger.hold(lease.hold)
        remaining = (hold.amount if hold else 0) - lease.meter(at).balance
        reserve = rent(lease.max_price, lease.weight, reserve_seconds(lease.notice_seconds))
        covered_seconds = max(
            1, (remaining - reserve) * 3600 * GPU_WEIGHT // (lease.max_price * lease.weight)
        )
        return min(at + 1000 * covered_seconds, lease.settled_at + 1000 * lease.epoch_seconds)


@dataclass
class _HeldLease:
    """A lease that a job has, or will have once it is ready."""

    lease: str
    number: int  # of its task
    runs: bool = False
    leaves: int | None = None  # the end of its notice


def _milliseconds(now: int) -> int:
    """The ledger's time of a simulated second, in milliseconds."""
    return 1000 * (_START + now)


def _paid(lease: Lease, at: int) -> int:
    """The lease's net cost up to a time."""
    return lease.charged + max(0, lease.meter(at).balance) - lease.compensation


def _view(job: Job, uid: str, price: int, *, created: int = 0) -> BidView:
    """
    The bid for a job; where GPUs differ, with an alternative for each kind, priced by its speed.
    """
    kinds = sorted(job.speeds, key=lambda kind: -job.speeds[kind]) or [_ANY]
    first, *alternatives = (
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
    return msgspec.structs.replace(first, otherwise=tuple(alternatives)) if alternatives else first


def _agents(jobs: Sequence[Job], unit: float, budget: float, gpus: int) -> tuple[AgentView, ...]:
    """One agent per tenant, weighted by its most important job and granted credits by weight."""
    weights: dict[str, int] = {}
    worth: dict[str, float] = {}
    for job in jobs:
        name = job.tenant or _ANY
        weights[name] = max(weights.get(name, 1), 1 + job.priority)
        worth[name] = worth.get(name, 0.0) + job.value
    hourly_credits = budget * gpus * MICRO
    total = sum(weights.values())
    agents = []
    for name, weight in sorted(weights.items()):
        # Without a budget each hour grants the value of all the tenant's jobs, and more for holds.
        refill = (
            int(hourly_credits * weight / total) if budget else 2 + int(100 * worth[name] * unit)
        )
        cap = _CARRY_HOURS * refill
        agents.append(AgentView(name=name, uid=name, owner=name, refill=refill, cap=cap))
    return tuple(agents)


def _pool(kind: str, terms: Terms) -> PoolView:
    """
    A pool that sells everything, however low the bids: a target of all keeps the base price down.
    """
    return PoolView(name=kind, product=kind, floor=FLOOR, target_percent=100, terms=terms)


def _device(kind: str, node: int, number: int) -> DeviceView:
    """One GPU, as the exchange sees it."""
    device = DeviceRef(node=f"n{node:04d}", driver="sim", pool=kind, name=f"{number:02d}")
    return DeviceView(device=device, product=kind, domain=device.node)


def _seats(devices: Sequence[DeviceRef]) -> Seats:
    """The GPUs by node, as the engine uses them."""
    seats: dict[int, tuple[int, ...]] = {}
    for device in devices:
        node = int(device.node[1:])
        seats[node] = (*seats.get(node, ()), int(device.name))
    return seats


RULES: dict[str, Rule] = {
    "exchange": by_remaining_work,
    "exchange-blind": by_attained_service,
    "exchange-worth": by_worth,
}
