"""
Selectors of bids, evaluated outside the round and within a budget.

A round asks only for answers that are there. A bid whose selector has not been evaluated on every
device that is sold waits for the round after; one whose selector costs more than it may is refused
and says so. Agents take turns, so one with many selectors delays nobody else's by more than one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable

import msgspec
import structlog

from bidplane.api.bid import BidReason
from bidplane.core.cel import CelError
from bidplane.exchange.snapshot import BidView, HostSnapshot
from bidplane.exchange.workers.selectorprocess import Answer, SelectorQuery
from bidplane.exchange.workers.worker import WorkerDied, WorkerProcess

# CPU time that one selector may take, for all devices together.
CPU_SECONDS = 0.25
CPU_SECONDS_PER_DEVICE = 0.000_5
SELECTORS_MOST = 32  # distinct ones in the standing bids of one agent
PATIENCE_SECONDS = 0.2  # that a round waits for new selectors, which mostly take milliseconds
_WALL_SECONDS = 60.0  # a worker that has neither answered nor died by then is stuck

log = structlog.get_logger(__name__)

_PENDING = "its selector is being evaluated; the bid takes part as soon as that is done"
_TOO_MANY = (
    f"the standing bids of its agent have {SELECTORS_MOST} other selectors already; use one of"
    " them, or end a bid"
)


class Selectors:
    """The answers so far, and the worker that finds the others."""

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        """`changed` is called when a bid that waited can take part."""
        self.changed = changed
        self._answers: dict[str, dict[bytes, bool | str]] = {}
        self._costly: dict[str, str] = {}  # by selector, why it is refused
        self._queue: dict[str, dict[str, list[bytes]]] = {}  # by agent and selector: facts to ask
        self._turn: dict[str, int] = {}  # by agent, when it was served last
        self._turns = 0
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._worker = WorkerProcess("bidplane.exchange.workers.selectorprocess")

    def selects(self, selector: str, facts: bytes) -> bool:
        """Return the answer that is there; raises `CelError` as the evaluation did."""
        truth = self._answers.get(selector, {}).get(facts, _PENDING)
        if isinstance(truth, str):
            raise CelError(truth)
        return truth

    def screen(self, snapshot: HostSnapshot) -> HostSnapshot:
        """Return the snapshot in which every selector has its answers; queue what lacks them."""
        if not any(map(_selectors, snapshot.bids)):
            self._forget({})
            return snapshot
        sold = frozenset(view.facts for view in snapshot.devices)
        beside = snapshot.unpriced.facts
        used: dict[str, dict[str, None]] = {}  # by agent, in the order of its bids' age
        refused: dict[str, BidView] = {}
        queue: dict[str, dict[str, list[bytes]]] = {}
        for bid in sorted(snapshot.bids, key=lambda bid: (bid.created, bid.uid)):
            selectors = _selectors(bid)
            if bid.problem or not selectors:
                continue
            mine = used.setdefault(bid.agent, {})
            mine.update(dict.fromkeys(selectors))
            if len(mine) > SELECTORS_MOST:
                for selector in list(mine)[SELECTORS_MOST:]:
                    del mine[selector]
                refused[bid.uid] = _refused(bid, BidReason.TOO_MANY_SELECTORS, _TOO_MANY)
                continue
            for selector, is_beside in selectors.items():
                if selector in self._costly:
                    message = self._costly[selector]
                    refused[bid.uid] = _refused(bid, BidReason.SELECTOR_TOO_COSTLY, message)
                elif missing := self._missing(selector, beside if is_beside else sold):
                    queue.setdefault(bid.agent, {})[selector] = missing
                    refused[bid.uid] = _refused(bid, BidReason.SELECTOR_PENDING, _PENDING)
        self._forget({selector for mine in used.values() for selector in mine})
        self._queue = queue
        if queue:
            self._idle.clear()
            self._work.set()
        bids = tuple(refused.get(bid.uid, bid) for bid in snapshot.bids)
        return msgspec.structs.replace(snapshot, bids=bids) if refused else snapshot

    async def wait(self, seconds: float) -> None:
        """Wait until nothing is queued, or for so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._idle.wait()

    async def run(self) -> None:
        """Evaluate what is queued, until cancelled."""
        try:
            while True:
                await self._work.wait()
                if not await self._evaluate_next():
                    self._work.clear()
                    self._idle.set()
        finally:
            await self._worker.stop()

    async def _evaluate_next(self) -> bool:
        if not self._queue:
            return False
        agent = min(self._queue, key=lambda name: (self._turn.get(name, 0), name))
        self._turns += 1
        self._turn[agent] = self._turns
        selector, facts = next(iter(self._queue[agent].items()))
        truths = await self._ask(selector, facts)
        if truths is None:
            log.warning("selector refused", agent=agent, selector=selector[:200])
            self._costly[selector] = _too_costly(len(facts))
        else:
            self._answers.setdefault(selector, {}).update(zip(facts, truths, strict=True))
        waiting = self._queue.get(agent, {})
        waiting.pop(selector, None)
        if not waiting:
            self._queue.pop(agent, None)
        self.changed()
        return True

    async def _ask(self, selector: str, facts: list[bytes]) -> list[bool | str] | None:
        """Return the worker's answers; None if it died of the question."""
        seconds = CPU_SECONDS + CPU_SECONDS_PER_DEVICE * len(facts)
        question = msgspec.msgpack.encode(SelectorQuery(selector, facts, seconds))
        try:
            body = await self._worker.ask(question, seconds=_WALL_SECONDS + seconds)
        except WorkerDied:
            return None
        return msgspec.msgpack.decode(body, type=Answer).truths

    def _missing(self, selector: str, facts: Iterable[bytes]) -> list[bytes]:
        answers = self._answers.get(selector, {})
        return sorted(device for device in facts if device not in answers)

    def _forget(self, used: Collection[str]) -> None:
        """Keep nothing of selectors that no bid has any more."""
        if len(self._answers) + len(self._costly) > len(used):
            self._answers = {s: answers for s, answers in self._answers.items() if s in used}
            self._costly = {s: message for s, message in self._costly.items() if s in used}


def _selectors(bid: BidView) -> dict[str, bool]:
    """Every selector of a bid, and whether it is for devices beside its GPUs."""
    selectors = {need.selector: False for need in bid.every_need if need.selector}
    return selectors | {text: True for need in bid.beside for text in need.selectors}


def _refused(bid: BidView, reason: BidReason, message: str) -> BidView:
    return msgspec.structs.replace(bid, problem=message, bad=reason)


def _too_costly(devices: int) -> str:
    most = CPU_SECONDS + CPU_SECONDS_PER_DEVICE * devices
    return (
        f"evaluating its selector on {devices} kinds of devices took more than {most:.2f} s of CPU"
        " time, or too much memory; compare attributes directly, without loops, long regular"
        " expressions or text that grows"
    )
