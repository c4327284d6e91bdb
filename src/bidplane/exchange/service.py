"""
The exchange as a process: reads the host, runs a round each second, and projects the ledger.

Rounds and projection are two loops. A host that does not answer delays what it is told,
never what is decided; and since the ledger commits first, nothing is lost between them.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import structlog

from bidplane.api import labels
from bidplane.api.bid import BidStatus
from bidplane.api.kinds import (
    AGENT,
    BID,
    DEVICE_CLASS,
    GPU_LEASE,
    NODE,
    POD,
    POOL,
    RESOURCE_CLAIM,
    RESOURCE_SLICE,
    Kind,
)
from bidplane.api.lease import CLAIMED, LeaseStatus, Phase
from bidplane.api.money import LARGEST_PRICE
from bidplane.api.objects import is_deleted, is_true, phase_of, uid_of
from bidplane.api.reading import Bid, Invalid, read_agent, read_bid, read_status
from bidplane.core.market.lots import selects
from bidplane.core.market.pricing.early import Bucket
from bidplane.core.nodes import availability
from bidplane.exchange import snapshot
from bidplane.exchange.engine import Engine, RoundReport
from bidplane.exchange.http import ExchangeApp, News
from bidplane.exchange.instantsales import NoSale
from bidplane.exchange.projector import Projector
from bidplane.exchange.quarantine import FAULTS, AgentQuarantine
from bidplane.exchange.round import usage
from bidplane.exchange.round.defaultprices import with_default_price
from bidplane.exchange.round.grants import HourlyGrant
from bidplane.exchange.round.usage import Read, UsageWatch
from bidplane.exchange.stalls import Stalls
from bidplane.exchange.status import won_status
from bidplane.exchange.workers.history import History
from bidplane.exchange.workers.selectors import PATIENCE_SECONDS, Selectors
from bidplane.kube.client import EventType, KubeClient, Object
from bidplane.ledger.ledger import Ledger
from bidplane.ledger.watermark import lost_message
from bidplane.machinery.clock import Clock
from bidplane.machinery.informer import Informer
from bidplane.runtime.identity.credentials import Tokens
from bidplane.runtime.supervision.health import Health

ROUND_SECONDS = 1.0
EARLIEST_SECONDS = 0.05  # between two rounds, whatever happens
_REST = 2  # and for this many times as long as the last one took
_LATE_SECONDS = 5.0  # past this and what a round takes, rounds are not being run
QUIET_SECONDS = 60.0  # a market in which nothing moves is looked at this often
KINDS = (AGENT, POOL, BID, NODE, RESOURCE_SLICE, RESOURCE_CLAIM, DEVICE_CLASS, GPU_LEASE)

log = structlog.get_logger(__name__)


class Exchange:
    """The only writer of the ledger. `app` is its HTTP side, served by whoever wires it."""

    def __init__(
        self,
        client: KubeClient,
        ledger: Ledger,
        tokens: Tokens,
        *,
        clock: Clock,
        counters: Read | None = None,
        selectors: Selectors | None = None,
        history: History | None = None,
        work: Path | None = None,
    ) -> None:
        """
        Create the exchange. `counters`: reads what GPUs do; without it every lease counts as in
        use. `selectors` evaluates those of bids outside the round; without it the round does.
        `history` reads old rounds off this loop; without it they are read on it. `work`: the file
        that records which agents were in work when a round was never completed.
        """
        self._clock = clock
        self._watch = UsageWatch(counters) if counters is not None else None
        self.informers: dict[Kind, Informer] = {
            kind: Informer(client, kind, clock=clock) for kind in KINDS
        }
        # Of the host's pods only those of others say anything here: agents' have claims.
        no_agent = f"!{labels.AGENT}"
        self.informers[POD] = Informer(client, POD, clock=clock, labels=no_agent)
        for informer in self.informers.values():
            informer.on_change(lambda *_: self._note_change())
        self._urgent = asyncio.Event()
        self.informers[GPU_LEASE].on_change(self._note_lease)
        self.informers[BID].on_change(self._note_bid)
        self.informers[NODE].on_change(self._note_node)
        self._buckets: dict[str, Bucket] = {}  # by owner
        self._early: set[str] = set()  # bids for which the next round is run at once
        self._requested_early: set[str] = set()  # bids that have asked for theirs
        self._sold: dict[str, BidStatus] = {}  # by bid: what the float sold since the last round
        self._selectors = selectors
        if selectors is not None:
            selectors.changed = self._note_change
        self._engine = Engine(ledger, selects=selectors.selects if selectors else selects)
        self._ledger = ledger
        self._projector = Projector(client, ledger, self.informers)
        self._news = News()
        self.app = ExchangeApp(
            ledger,
            tokens,
            self._news,
            clock=clock,
            grant_of=self._grant_of,
            suspended=self._is_suspended,
            desk=self._engine.desk,
            history=history,
            problem=lambda: self._ledger_problem,
        )
        self._ledger_problem = ""  # what the ledger lacks that the host knows of
        self._reader = snapshot.Reader()
        self._quarantine = AgentQuarantine()
        self._stalls = Stalls(work, now=clock.now())
        self._accused = False
        self._last_snapshot: snapshot.HostSnapshot | None = None
        self._report: RoundReport | None = None
        self._round_seconds = 0.0  # of the last round
        self._changed = True
        self._looked_at = 0.0
        self._round_at = 0.0  # when the loop of rounds came by last
        self._unprojected_since = 0.0  # since when the host could not be written; 0: it could
        self._projection_due = asyncio.Event()

    async def run(self) -> None:
        """Run rounds until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for informer in self.informers.values():
                tasks.create_task(informer.run())
            await self.synced()
            self.check_ledger()
            if self._ledger_problem:
                log.error("the exchange does not open", problem=self._ledger_problem)
                await asyncio.Event().wait()  # whoever looks is told; the operator decides
            log.info("exchange open", ledger=self._ledger.head.sequence)
            tasks.create_task(self._project_when_due())
            tasks.create_task(self._watch_use())
            if self._selectors is not None:
                tasks.create_task(self._selectors.run())
            while True:
                await self._await_selectors()
                self._round_at = self._clock.now()
                self.run_round()
                await self._until_next_round()

    async def _await_selectors(self) -> None:
        """Give new selectors a moment, so that bids seldom wait a round for their answers."""
        if self._selectors is not None and self._changed:
            self._selectors.screen(self._snapshot())
            await self._selectors.wait(PATIENCE_SECONDS)

    async def _until_next_round(self) -> None:
        """Wait a second; less when a pod waits for its lease, or a lease was given back."""
        self._urgent.clear()
        # What a burst asks for is answered by few rounds: they leave most of the time to
        # telling of them.
        least = min(max(EARLIEST_SECONDS, _REST * self._round_seconds), ROUND_SECONDS)
        await self._clock.sleep(least)
        waiting = asyncio.ensure_future(self._urgent.wait())
        pause = asyncio.ensure_future(self._clock.sleep(ROUND_SECONDS - least))
        try:
            await asyncio.wait({waiting, pause}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            pause.cancel()

    async def synced(self) -> None:
        for informer in self.informers.values():
            await informer.synced.wait()

    def check_ledger(self) -> None:
        """Compare with the host, whose leases say which commit of the ledger they show."""
        statuses = (read_status(obj, LeaseStatus) for obj in self.informers[GPU_LEASE].items())
        newest = max((status.sequence for status in statuses if status), default=0)
        has = self._ledger.head.sequence
        if newest > has and not self._ledger.accepts_loss:
            self._ledger_problem = lost_message("the ledger", has, newest)

    def run_round(self) -> RoundReport | None:
        """Run one round, if there is anything it could change."""
        now = self._clock.now()
        if not self._has_work(now):
            return None
        self._changed, self._looked_at = False, now
        early, self._early = frozenset(self._early), set()
        self._sold = {}
        self._report = self._cleared(now, early)
        self._round_seconds = self._clock.now() - now
        self._news.publish(self._report.result.lots, recorded=self._report.recorded)
        self._projection_due.set()
        return self._report

    def _cleared(self, now: float, early: frozenset[str]) -> RoundReport:
        """Run the round; if an agent's rows make it fail, run it without that agent."""
        screened = self._snapshot()
        if self._selectors is not None:
            screened = self._selectors.screen(screened)
        self._accuse(screened)
        snapshot = self._quarantine.apply(screened)
        self._stalls.begin(snapshot, now)
        try:
            report = self._engine.run_round(snapshot, now, early)
            self._stalls.end(snapshot, self._clock.now() - now)
            return report
        except FAULTS as error:
            log.exception("round failed", round=self._ledger.last_round + 1)
            at_fault = self._quarantine.search(
                screened, lambda part: self._engine.rehearse(part, now, early), error
            )
            if not at_fault:
                self._changed = True  # nothing of it was kept: what has changed is still news
                raise
        return self._engine.run_round(self._quarantine.apply(screened), now, early)

    def _accuse(self, host: snapshot.HostSnapshot) -> None:
        """Leave out, once, the agents with whom the previous process was killed twice."""
        if not self._accused:
            self._accused = True
            self._quarantine.accuse(host, self._stalls.culprits(host))

    async def project(self) -> int:
        """Write the ledger's state to the host. Return how many writes are left to try."""
        problems = (
            {a.uid: a.problem for a in self._last_snapshot.agents if a.problem}
            if self._last_snapshot
            else {}
        )
        quarantined = {**problems, **self._quarantine.messages}
        return await self._projector.project(self._report, self._sold, quarantined)

    def _has_work(self, now: float) -> bool:
        if self._changed or self._report is None or now >= self._looked_at + QUIET_SECONDS:
            return True
        # A standing bid may win as prices fall; a live lease may run out of time or money.
        standing = bool(self._report.result.lost or self._report.result.kept)
        return standing or bool(self._ledger.live_leases())

    async def _watch_use(self) -> None:
        while self._watch is not None:
            began = self._clock.now()
            await self.look_at_use()
            took = self._clock.now() - began
            await self._clock.sleep(max(usage.LOOK_SECONDS, usage.REST * took))

    async def look_at_use(self) -> None:
        """Read what the GPUs of running leases do now, for the rounds to come."""
        leases = [lease for lease in self._ledger.live_leases() if lease.phase is Phase.ACTIVE]
        if self._watch is None or self._last_snapshot is None:
            return
        if await self._watch.look(
            leases,
            nodes=self.informers[NODE].items(),
            devices=self._last_snapshot.devices,
            slices=list(self.informers[RESOURCE_SLICE].items()),
            claims=self.informers[RESOURCE_CLAIM].items(),
            windows={pool.name: pool.idle_seconds for pool in self._last_snapshot.pools},
            now=self._clock.now,
        ):
            self._note_change()

    def _snapshot(self) -> snapshot.HostSnapshot:
        self._last_snapshot = self._reader.take(
            agents=self.informers[AGENT].items(),
            pools=self.informers[POOL].items(),
            bids=self.informers[BID].items(),
            slices=self.informers[RESOURCE_SLICE].items(),
            leases=self.informers[GPU_LEASE].items(),
            nodes=self.informers[NODE].items(),
            claims=self.informers[RESOURCE_CLAIM].items(),
            classes=self.informers[DEVICE_CLASS].items(),
            pods=self.informers[POD].items(),
        )
        if self._watch is None:
            return self._last_snapshot
        idle, used = self._watch.idle, self._watch.used
        return msgspec.structs.replace(self._last_snapshot, idle=idle, used=used)

    def add_checks(self, health: Health) -> None:
        """Add the readiness checks: the exchange sees the host, runs rounds, and projects them."""
        health.add("ledger", lambda: self._ledger_problem)
        health.add("host", self._host_problem)
        health.add("rounds", self._round_problem)
        health.add("projection", self._projection_problem)

    def _host_problem(self) -> str:
        missing = [k.plural for k, i in self.informers.items() if not i.synced.is_set()]
        return f"has not listed {', '.join(missing)} yet" if missing else ""

    def _round_problem(self) -> str:
        late = self._clock.now() - self._round_at
        if self._round_at and late > _LATE_SECONDS + _REST * self._round_seconds:
            return f"the last round began {late:.0f} s ago"
        return "" if self._round_at else "no round has been run yet"

    def _projection_problem(self) -> str:
        since = self._unprojected_since
        waited = self._clock.now() - since
        return f"the host takes no writes for {waited:.0f} s" if since and waited > 10 else ""

    @property
    def notes(self) -> list[str]:
        """The problems that an operator should know though rounds go on."""
        agents = self._last_snapshot.agents if self._last_snapshot else ()
        names = {agent.uid: agent.name for agent in agents}
        problems = {agent.uid: agent.problem for agent in agents if agent.problem}
        problems |= self._quarantine.messages
        return [f"agent {names.get(uid, uid)}: {text}" for uid, text in problems.items()]

    @property
    def last(self) -> RoundReport | None:
        return self._report

    @property
    def last_seconds(self) -> float:
        """The duration of the last round."""
        return self._round_seconds

    def _grant_of(self, uid: str) -> HourlyGrant | None:
        for obj in self.informers[AGENT].items():
            if uid_of(obj) == uid:
                agent = snapshot.agent_view(obj)
                if agent.default_refill:  # it depends on the other agents, too
                    agent = self._engine.agents.get(uid, agent)
                return HourlyGrant(agent.refill, agent.cap, agent.default_refill)
        return None

    def _is_suspended(self, uid: str) -> bool:
        for obj in self.informers[AGENT].items():
            if uid_of(obj) == uid:
                agent = read_agent(obj)
                return isinstance(agent, Invalid) or agent.spec.suspended
        return False

    def _note_lease(self, event: EventType, lease: Object) -> None:
        """
        Run a round at once for a pod that waits for its lease, or a lease that was given back.
        """
        if is_deleted(lease) or (phase_of(lease) == Phase.PENDING and is_true(lease, CLAIMED)):
            self._urgent.set()

    def _note_node(self, event: EventType, node: Object) -> None:
        """
        Stop the float's sales on a node that cannot take pods, without waiting for the next round.
        """
        state = availability.state_of(node)
        if event == "DELETED" or state.trouble:
            self._engine.desk.withdraw(state.name)

    def _note_bid(self, event: EventType, obj: Object) -> None:
        """
        Serve an instant bid from the float at once, if that has what it asks for. Run a round at
        once for an urgent bid, if its owner may ask for one more.
        """
        uid = uid_of(obj)
        if event == "DELETED":
            self._requested_early.discard(uid)
            self._sold.pop(uid, None)
            return
        if self._ledger_problem or uid in self._requested_early:
            return
        bid = read_bid(obj)
        if not isinstance(bid, Bid) or bid.status is not None:
            return
        at_once = bid.spec.instant and self._engine.desk.floats
        if not (at_once or bid.spec.urgent):
            return
        view = snapshot.bid_view(obj)
        agent_object = self.informers[AGENT].get(None, view.agent) if view is not None else None
        if view is None or agent_object is None:
            return
        agent = snapshot.agent_view(agent_object)
        view = with_default_price(
            view,
            agent,
            self._last_snapshot.pools if self._last_snapshot else (),
            self._engine.ceilings.get(agent.name, LARGEST_PRICE),
        )
        if view.instant and self._serve(view, agent):
            return
        if view.urgent:
            self._ask_for_a_round(uid, agent.owner)

    def _serve(self, bid: snapshot.BidView, agent: snapshot.AgentView) -> bool:
        lease = self._engine.desk.serve(bid, agent, now=round(self._clock.now() * 1000))
        if isinstance(lease, NoSale):
            return False
        self._sold[bid.uid] = won_status(bid, lease)
        self._projection_due.set()
        return True

    def _ask_for_a_round(self, uid: str, owner: str) -> None:
        bucket = self._buckets.get(owner, Bucket()).take(round(self._clock.now() * 1000))
        self._requested_early.add(uid)
        if bucket is not None and owner:
            self._buckets[owner] = bucket
            self._early.add(uid)
            self._urgent.set()

    def _note_change(self) -> None:
        self._changed = True

    async def _project_when_due(self) -> None:
        while True:
            await self._projection_due.wait()
            self._projection_due.clear()
            failed = await self.project() - self._projector.deferred
            if failed:
                self._unprojected_since = self._unprojected_since or self._clock.now()
                await self._clock.sleep(ROUND_SECONDS)
            else:
                self._unprojected_since = 0.0
                if self._ledger.accepts_loss and not self._projector.deferred:
                    self._ledger.accept_loss(accepts=False)  # the host shows nothing else now
            if failed or self._projector.deferred:
                self._projection_due.set()
