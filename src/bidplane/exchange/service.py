"""
The exchange as a process: reads the host, runs a round each second, tells the host.

Rounds and projection are two loops. A host that does not answer delays what it is told,
never what is decided; and since the ledger commits first, nothing is lost between them.
"""

from __future__ import annotations

import asyncio

import msgspec
import structlog

from bidplane.api.bid import BidStatus
from bidplane.api.kinds import (
    AGENT,
    BID,
    DEVICE_CLASS,
    GPU_LEASE,
    NODE,
    POOL,
    RESOURCE_CLAIM,
    RESOURCE_SLICE,
    Kind,
)
from bidplane.api.lease import Phase
from bidplane.core import nodestate
from bidplane.core.market.early import Bucket
from bidplane.exchange import marks, snapshot, using
from bidplane.exchange.desk import NoSale
from bidplane.exchange.engine import Engine, Report
from bidplane.exchange.http import ExchangeApp, News
from bidplane.exchange.projector import Projector
from bidplane.exchange.status import won_status
from bidplane.exchange.using import Read, Watch
from bidplane.kube.client import Client, EventType, Object
from bidplane.ledger.ledger import Ledger
from bidplane.machinery.clock import Clock
from bidplane.machinery.informer import Informer
from bidplane.runtime.credentials import Tokens

ROUND_SECONDS = 1.0
EARLIEST_SECONDS = 0.05  # between two rounds, whatever happens
_REST = 2  # and for this many times as long as the last one took
QUIET_SECONDS = 60.0  # a market in which nothing moves is looked at this often
KINDS = (AGENT, POOL, BID, NODE, RESOURCE_SLICE, RESOURCE_CLAIM, DEVICE_CLASS, GPU_LEASE)

log = structlog.get_logger(__name__)


class Exchange:
    """The only writer of the ledger. `app` is its HTTP side, served by whoever wires it."""

    def __init__(
        self,
        client: Client,
        ledger: Ledger,
        tokens: Tokens,
        *,
        clock: Clock,
        counters: Read | None = None,
    ) -> None:
        """`counters`: what GPUs do, if anybody tells; without it every lease counts as in use."""
        self._clock = clock
        self._watch = Watch(counters) if counters is not None else None
        self.informers: dict[Kind, Informer] = {
            kind: Informer(client, kind, clock=clock) for kind in KINDS
        }
        for informer in self.informers.values():
            informer.on_change(lambda *_: self._note_change())
        self._urgent = asyncio.Event()
        self.informers[GPU_LEASE].on_change(self._note_lease)
        self.informers[BID].on_change(self._note_bid)
        self.informers[NODE].on_change(self._note_node)
        self._buckets: dict[str, Bucket] = {}  # by owner
        self._early: set[str] = set()  # bids for which the next round is run at once
        self._asked: set[str] = set()  # bids that have asked for theirs
        self._sold: dict[str, BidStatus] = {}  # by bid: what the float sold since the last round
        self._engine = Engine(ledger)
        self._ledger = ledger
        self._projector = Projector(client, ledger, self.informers)
        self._news = News()
        self.app = ExchangeApp(
            ledger,
            tokens,
            self._news,
            clock=clock,
            cap_of=self._cap_of,
            suspended=self._is_suspended,
            desk=self._engine.desk,
        )
        self._reader = snapshot.Reader()
        self._seen: snapshot.Snapshot | None = None  # the last
        self._report: Report | None = None
        self._took = 0.0  # seconds, the last round
        self._changed = True
        self._looked_at = 0.0
        self._to_tell = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for informer in self.informers.values():
                tasks.create_task(informer.run())
            await self.synced()
            log.info("exchange open", ledger=self._ledger.head.sequence)
            tasks.create_task(self._tell())
            tasks.create_task(self._watch_use())
            while True:
                self.run_round()
                await self._until_next_round()

    async def _until_next_round(self) -> None:
        """A second; or at once when a pod waits for its lease, or a lease was given back."""
        self._urgent.clear()
        # What a burst asks for is answered by few rounds: they leave most of the time to
        # telling of them.
        least = min(max(EARLIEST_SECONDS, _REST * self._took), ROUND_SECONDS)
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

    def run_round(self) -> Report | None:
        """One round, if there is anything it could change."""
        now = self._clock.now()
        if not self._has_work(now):
            return None
        self._changed, self._looked_at = False, now
        early, self._early = frozenset(self._early), set()
        self._sold = {}
        self._report = self._engine.run_round(self._snapshot(), now, early)
        self._took = self._clock.now() - now
        self._news.publish(self._report.result.lots, recorded=self._report.recorded)
        self._to_tell.set()
        return self._report

    async def project(self) -> int:
        """Tell the host what the ledger says; returns how many writes are left to try."""
        return await self._projector.project(self._report, self._sold)

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
            await self._clock.sleep(max(using.LOOK_SECONDS, using.REST * took))

    async def look_at_use(self) -> None:
        """What the GPUs of running leases do now, for the rounds to come."""
        leases = [lease for lease in self._ledger.live_leases() if lease.phase is Phase.ACTIVE]
        if self._watch is None or self._seen is None:
            return
        if await self._watch.look(
            leases,
            nodes=self.informers[NODE].items(),
            devices=self._seen.devices,
            slices=list(self.informers[RESOURCE_SLICE].items()),
            claims=self.informers[RESOURCE_CLAIM].items(),
            windows={pool.name: pool.idle_seconds for pool in self._seen.pools},
            now=self._clock.now,
        ):
            self._note_change()

    def _snapshot(self) -> snapshot.Snapshot:
        self._seen = self._reader.take(
            agents=self.informers[AGENT].items(),
            pools=self.informers[POOL].items(),
            bids=self.informers[BID].items(),
            slices=self.informers[RESOURCE_SLICE].items(),
            leases=self.informers[GPU_LEASE].items(),
            nodes=self.informers[NODE].items(),
            claims=self.informers[RESOURCE_CLAIM].items(),
            classes=self.informers[DEVICE_CLASS].items(),
        )
        if self._watch is None:
            return self._seen
        idle, used = self._watch.idle, self._watch.used
        return msgspec.structs.replace(self._seen, idle=idle, used=used)

    def _cap_of(self, uid: str) -> int | None:
        for agent in self.informers[AGENT].items():
            if agent["metadata"]["uid"] == uid:
                return snapshot.agent_view(agent).cap
        return None

    def _is_suspended(self, uid: str) -> bool:
        return any(
            agent["metadata"]["uid"] == uid and bool(agent["spec"].get("suspended"))
            for agent in self.informers[AGENT].items()
        )

    def _note_lease(self, event: EventType, lease: Object) -> None:
        """Bids wait for the round; whoever holds a lease, or gave one back, does not."""
        phase = (lease.get("status") or {}).get("phase")
        left = marks.is_deleted(lease)
        if left or (phase == Phase.PENDING and marks.is_claimed(lease)):
            self._urgent.set()

    def _note_node(self, event: EventType, node: Object) -> None:
        """What is sold between rounds does not wait for the next to learn of it."""
        state = nodestate.state_of(node)
        if event == "DELETED" or state.trouble:
            self._engine.desk.withdraw(state.name)

    def _note_bid(self, event: EventType, bid: Object) -> None:
        """
        An instant bid is served from the float at once, if that has what it asks for. An
        urgent one has its round at once, if its owner may ask for one more.
        """
        uid = bid["metadata"]["uid"]
        if event == "DELETED":
            self._asked.discard(uid)
            self._sold.pop(uid, None)
            return
        # Nearly every bid is neither, or there is no float: then it costs nothing to hear of it.
        at_once = bid["spec"].get("instant") and self._engine.desk.floats
        if bid.get("status") or uid in self._asked or not (at_once or bid["spec"].get("urgent")):
            return
        view = snapshot.bid_view(bid)
        found = self.informers[AGENT].get(None, view.agent) if view is not None else None
        if view is None or found is None:
            return
        agent = snapshot.agent_view(found)
        if view.instant and self._serve(view, agent):
            return
        if view.urgent:
            self._ask_for_a_round(uid, agent.owner)

    def _serve(self, bid: snapshot.BidView, agent: snapshot.AgentView) -> bool:
        lease = self._engine.desk.serve(bid, agent, now=round(self._clock.now() * 1000))
        if isinstance(lease, NoSale):
            return False
        self._sold[bid.uid] = won_status(bid, lease)
        self._to_tell.set()
        return True

    def _ask_for_a_round(self, uid: str, owner: str) -> None:
        left = self._buckets.get(owner, Bucket()).take(round(self._clock.now() * 1000))
        self._asked.add(uid)
        if left is not None and owner:
            self._buckets[owner] = left
            self._early.add(uid)
            self._urgent.set()

    def _note_change(self) -> None:
        self._changed = True

    async def _tell(self) -> None:
        while True:
            await self._to_tell.wait()
            self._to_tell.clear()
            if await self.project():
                await self._clock.sleep(ROUND_SECONDS)
                self._to_tell.set()
