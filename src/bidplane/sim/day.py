"""
A day of agents on a fleet, played in virtual time by the exchange's own engine and ledger.

The decisions are those of an installation: `exchange.engine.Engine` grants the refills, prices the
bids by priority and wallet, and runs the rounds, and a ledger has every credit. Planes, pods and
nodes are not played: this file starts and stops the jobs as their leases do.

Rounds are a second apart while anything changes. While nothing does, those that would decide
nothing are skipped: the next round is half a minute later, or when a job arrives or ends.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from bidplane.api.kinds import POOL
from bidplane.api.lease import Phase
from bidplane.api.manifests import manifest
from bidplane.api.money import rent
from bidplane.exchange.engine import Engine, RoundReport
from bidplane.exchange.round.devices import device_views
from bidplane.exchange.snapshot import AgentView, BidView, HostSnapshot, pool_view
from bidplane.ledger import Ledger, leases
from bidplane.ledger.records import Lease, TransferKind, lease_id, wallet_of
from bidplane.ledger.tables import LEASE, TRANSFER
from bidplane.ledger.verify import VerifyReport, verify_store
from bidplane.node.fleet import Fleet, machine_of
from bidplane.node.inventory.slices import slices_of
from bidplane.node.offering import pool_specs
from bidplane.sim.memory import MemoryStore

_START = 1_000_000  # seconds: the ledger's clock when the day begins
QUIET_SECONDS = 30  # between rounds while nothing changes


class DayJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job: when it is submitted, and what it needs."""

    agent: str
    name: str
    at: int  # seconds from the start
    gpus: int
    seconds: int
    pool: str = ""
    saves: bool = False  # it takes a checkpoint on notice, and continues from it


class JobStarted(NamedTuple):
    at: int
    job: DayJob
    is_restart: bool  # it was displaced before


class JobDisplaced(NamedTuple):
    at: int
    job: DayJob
    outbid: bool  # by another bid; otherwise its wallet no longer covers it


class JobDone(NamedTuple):
    at: int
    job: DayJob


DayEvent = JobStarted | JobDisplaced | JobDone


class GpuStay(NamedTuple):
    """The time that a job held its GPUs, from the claim to the release."""

    job: DayJob
    began: int
    ended: int


class AgentBill(NamedTuple):
    """The amounts that an agent was granted, offered and paid, in micro-credits."""

    granted: int
    offered: int  # the rent of its leases, had each paid all that it offered
    rent: int
    compensation_paid: int  # to those that it displaced
    compensation_received: int


class HourOfMoney(NamedTuple):
    """The credits of one hour, of all agents, and for how much of it bids waited."""

    granted: int
    spent: int
    waiting_seconds: int


@dataclasses.dataclass
class _JobState:
    """The progress of one job."""

    job: DayJob
    done_seconds: int = 0  # of its work, saved
    wins: int = 0  # a bid wins once; the next one has another name
    since: int = 0  # when it began to wait
    lease: str = ""
    claimed_at: int | None = None
    leaves: int | None = None  # the end of its notice
    was_displaced: bool = False
    is_done: bool = False

    @property
    def uid(self) -> str:
        return f"{self.job.name}-{self.wins}"


class MarketDay:
    """Plays jobs on a fleet; `play` yields what happens, in the order of time."""

    def __init__(
        self,
        jobs: Sequence[DayJob],
        agents: Sequence[AgentView],
        fleet: Fleet,
        *,
        seconds: int,
        quiet_seconds: int = QUIET_SECONDS,
    ) -> None:
        """
        Set up the day. `seconds`: its length, at whose end every lease ends; `quiet_seconds`: from
        round to round while nothing changes.
        """
        self._states = [_JobState(job, since=job.at) for job in sorted(jobs, key=_by_arrival)]
        self._agents = tuple(agents)
        self._seconds, self._quiet_seconds = seconds, quiet_seconds
        specs = pool_specs(fleet)
        pools = [pool_view(manifest(POOL, name, spec)) for name, spec in specs.items()]
        self._pools = tuple(pool for pool in pools if pool is not None)
        self._restart = {pool.name: pool.terms.restart_seconds for pool in self._pools}
        self._devices = tuple(
            view
            for node in fleet.nodes
            for slice_ in slices_of(machine_of(node), taint_degraded=node.taint_degraded)
            for view in device_views(slice_)
        )
        self._store = MemoryStore(history=True)
        self._ledger = Ledger(self._store)
        self._engine = Engine(self._ledger)
        self._report: RoundReport | None = None
        self.rounds = 0
        self.stays: list[GpuStay] = []
        self._waiting_seconds: dict[int, int] = {}  # by hour, how long bids waited

    def __repr__(self) -> str:
        done = sum(state.is_done for state in self._states)
        return f"<MarketDay {done} of {len(self._states)} jobs done, {self.rounds} rounds>"

    @property
    def prices(self) -> dict[str, str]:
        """By pool, the price of one more GPU after the last round."""
        pools = self._report.pools if self._report else {}
        return {name: status.price for name, status in sorted(pools.items())}

    @property
    def gpus_in_use(self) -> dict[str, int]:
        """By agent, the GPUs it holds now."""
        in_use: dict[str, int] = {}
        for state in self._states:
            if state.claimed_at is not None:
                in_use[state.job.agent] = in_use.get(state.job.agent, 0) + state.job.gpus
        return in_use

    def play(self) -> Iterator[DayEvent]:
        """Play the day."""
        now = 0
        while now < self._seconds:
            ended = list(self._collect_ended(now))
            yield from (event for _, event in ended if event is not None)
            report = self._round(now, [lease for lease, _ in ended])
            yield from self._note_displaced(now, report)
            started = self._start_ready(now)
            yield from started
            changed = bool(ended or started or report.result.won or report.result.displaced)
            following = self._next_round(now, changed=changed)
            if any(self._waits(state, now) for state in self._states):
                self._note_waiting(now, following)
            now = following
        self._end_day()

    # One round

    def _round(self, now: int, left: Sequence[str]) -> RoundReport:
        snapshot = HostSnapshot(
            agents=self._agents,
            pools=self._pools,
            bids=tuple(
                _bid(state)
                for state in self._states
                if state.job.at <= now < self._seconds
                and not state.is_done
                and state.leaves is None
            ),
            devices=self._devices,
            left=frozenset(left),
        )
        self._report = self._engine.run_round(snapshot, float(_START + now))
        self.rounds += 1
        by_uid = {state.uid: state for state in self._states}
        for won in self._report.result.won:
            by_uid[won.ask].lease = lease_id(won.ask)
        return self._report

    def _note_displaced(self, now: int, report: RoundReport) -> Iterator[DayEvent]:
        """Note the leases that got notice, and those that were taken before they began."""
        outbid = {displaced.lease for displaced in report.result.displaced}
        for state in self._states:
            lease = self._lease(state)
            if lease is None or state.leaves is not None:
                continue
            if lease.phase is Phase.DRAINING:
                state.leaves = lease.reclaim_at // 1000 - _START
                state.was_displaced = True
                yield JobDisplaced(now, state.job, lease.id in outbid)
            elif lease.phase is Phase.RELEASED:
                self._wait_again(state, now)

    def _start_ready(self, now: int) -> list[DayEvent]:
        """Claim the leases whose GPUs are free; their jobs run, and pay, from now on."""
        ready = [
            state
            for state in self._states
            if state.claimed_at is None
            and (lease := self._lease(state)) is not None
            and lease.ready
        ]
        if ready:
            with self._ledger.commit(1000 * (_START + now)) as commit:
                for state in ready:
                    leases.claim(commit, state.lease)
                    state.claimed_at = now
        return [JobStarted(now, state.job, state.was_displaced) for state in ready]

    def _collect_ended(self, now: int) -> Iterator[tuple[str, JobDone | None]]:
        """End the jobs that are done, and those whose notice is over. Yield their leases."""
        for state in self._states:
            if state.claimed_at is None:
                continue
            if self._done_at(state) <= now:
                state.is_done = True
                yield self._leave(state, now), JobDone(now, state.job)
            elif state.leaves is not None and state.leaves <= now:
                worked = max(0, now - self._works_from(state))
                state.done_seconds = state.done_seconds + worked if state.job.saves else 0
                yield self._leave(state, now), None

    def _leave(self, state: _JobState, now: int) -> str:
        """Give the job's GPUs back; return the lease."""
        assert state.claimed_at is not None
        self.stays.append(GpuStay(state.job, state.claimed_at, now))
        lease = state.lease
        self._wait_again(state, now)
        return lease

    def _wait_again(self, state: _JobState, now: int) -> None:
        state.lease, state.claimed_at, state.leaves = "", None, None
        state.wins, state.since = state.wins + 1, now

    # Time

    def _works_from(self, state: _JobState) -> int:
        """When the job's work goes on: a job that was displaced needs a restart first."""
        assert state.claimed_at is not None
        lease = self._lease(state)
        restart = self._restart.get(lease.pool, 0) if lease and state.was_displaced else 0
        return state.claimed_at + restart

    def _done_at(self, state: _JobState) -> int:
        return self._works_from(state) + state.job.seconds - state.done_seconds

    def _waits(self, state: _JobState, now: int) -> bool:
        return state.job.at <= now and not state.is_done and not state.lease

    def _next_round(self, now: int, *, changed: bool) -> int:
        """The time of the next round in which something can be decided."""
        moments = [self._seconds]
        moments += [state.job.at for state in self._states if state.job.at > now]
        for state in self._states:
            if state.claimed_at is not None:
                moments.append(self._done_at(state))
            if state.leaves is not None:
                moments.append(state.leaves)
        if changed:
            moments.append(now + 1)
        elif any(state.lease or self._waits(state, now) for state in self._states):
            moments.append(now + self._quiet_seconds)
        return max(now + 1, min(moments))

    def _note_waiting(self, since: int, until: int) -> None:
        """Note that bids wait from one round to the next."""
        while since < until:
            hour = since // 3600
            end = min(until, 3600 * (hour + 1))
            self._waiting_seconds[hour] = self._waiting_seconds.get(hour, 0) + end - since
            since = end

    def _end_day(self) -> None:
        """Give all GPUs back, and settle."""
        left = [
            self._leave(state, self._seconds)
            for state in self._states
            if state.claimed_at is not None
        ]
        self._round(self._seconds, left)

    # Results

    def _lease(self, state: _JobState) -> Lease | None:
        return self._ledger.lease(state.lease) if state.lease else None

    def bills(self) -> Mapping[str, AgentBill]:
        """Return the bill of each agent, by name."""
        bills = {}
        for agent in self._agents:
            wallet = wallet_of(agent.uid)
            mine = [lease for lease in self.leases if lease.wallet == wallet]
            bills[agent.name] = AgentBill(
                granted=sum(
                    transfer.amount
                    for transfer in self._store.find(TRANSFER)
                    if transfer.kind is TransferKind.REFILL and transfer.credit == wallet
                ),
                offered=sum(map(offered_rent, mine)),
                rent=sum(lease.charged - lease.displacement for lease in mine),
                compensation_paid=sum(lease.displacement for lease in mine),
                compensation_received=sum(lease.compensation for lease in mine),
            )
        return bills

    def hours(self) -> list[HourOfMoney]:
        """The money of each hour."""
        granted, spent = Counter[int](), Counter[int]()
        for transfer in self._store.find(TRANSFER):
            hour = max(0, transfer.at - 1000 * _START - 1) // 3_600_000
            if transfer.kind is TransferKind.REFILL:
                granted[hour] += transfer.amount
            elif transfer.kind in (TransferKind.RENT, TransferKind.LEVY):
                spent[hour] += transfer.amount
        return [
            HourOfMoney(granted[hour], spent[hour], self._waiting_seconds.get(hour, 0))
            for hour in range(-(-self._seconds // 3600))
        ]

    @property
    def leases(self) -> list[Lease]:
        """All leases of the day, in the order in which they were won."""
        return sorted(self._store.find(LEASE), key=lambda lease: (lease.won_at, lease.id))

    def verify(self) -> VerifyReport:
        """Check the whole ledger of the day."""
        return verify_store(self._store)


def offered_rent(lease: Lease) -> int:
    """Return what a lease would have paid for its time at the price that it offered."""
    if not lease.active_at:
        return 0
    seconds = -(-(lease.released_at - lease.active_at) // 1000)
    return rent(lease.max_price, lease.weight, seconds)


def _bid(state: _JobState) -> BidView:
    """The job's bid. It names no price: the exchange sets it by its agent's priority and wallet."""
    job = state.job
    return BidView(
        uid=state.uid,
        namespace=job.agent,
        name=state.uid,
        agent=job.agent,
        gpus=job.gpus,
        pool=job.pool,
        created=_START + state.since,
    )


def _by_arrival(job: DayJob) -> tuple[int, str]:
    return job.at, job.name
