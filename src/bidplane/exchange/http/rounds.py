"""Rounds over HTTP: one record, the outcomes of many, and why a bid was not enough."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from bidplane.exchange.http.asking import ExchangeRequest, read_history
from bidplane.exchange.http.news import News
from bidplane.exchange.http.parameters import LARGEST_NUMBER, number
from bidplane.exchange.rates import HISTORY_COST, Rates
from bidplane.exchange.workers.history import History
from bidplane.exchange.workers.historyprocess import HistoryPage
from bidplane.http.replies import LINES, Reply
from bidplane.ledger.ledger import Ledger
from bidplane.ledger.records import wallet_of
from bidplane.machinery.clock import Clock
from bidplane.runtime.identity.credentials import Identity
from bidplane.wire import status

ROUNDS_AT_ONCE = 20  # in one page
ROUNDS_MOST = 1000  # in one answer that does not follow, unless it asks for fewer


class RoundRoutes:
    """Answers about rounds, which the history reads."""

    def __init__(
        self, ledger: Ledger, news: News, history: History, rates: Rates, *, clock: Clock
    ) -> None:
        self._ledger, self._news, self._history = ledger, news, history
        self._rates, self._clock = rates, clock

    async def round(self, ask: ExchangeRequest) -> Reply:
        """The record of a round, for owners only: everybody's offers are in it."""
        if not ask.identity.is_owner:
            message = "only an owner may read a whole round; your own outcomes are at rounds?after="
            raise status.refuse(403, "Forbidden", message)
        round_number = number({"round": ask.name}, "round", 0, least=0)
        record = await read_history(self._history, ask.identity, "round_record", round_number)
        if not record:
            message = f"there is no round {round_number}; the last is {self._ledger.last_round}"
            raise status.refuse(404, "NotFound", message)
        return Reply(record)

    async def explain(self, ask: ExchangeRequest) -> Reply:
        uid, identity = ask.name, ask.identity
        agent = None if identity.is_owner else identity.plane
        explanation = await read_history(
            self._history, identity, "explanation", uid, agent, self._since(identity)
        )
        if not explanation:
            message = f"no recent round had a bid with the uid {uid!r}; its status may say more"
            raise status.refuse(404, "NotFound", message)
        return Reply(explanation)

    async def rounds(self, ask: ExchangeRequest) -> Reply:
        """
        Stream rounds, one per line, at most `limit`; with `follow`, new ones as they happen. Each
        page is a request of its own to the history, and counts as one.
        """
        follow = ask.query.get("follow", "false") in ("true", "1")
        most = number(ask.query, "limit", LARGEST_NUMBER if follow else ROUNDS_MOST, least=1)
        after = number(ask.query, "after", 0)
        if after < 0:  # counts from the end: after=-10 is the last ten
            after = max(0, self._ledger.last_round + after)
        # The first page before the answer begins: until then it can be refused.
        first = await self._page(ask.identity, after, min(most, ROUNDS_AT_ONCE))
        chunks = self._lines(ask.identity, first, most, follow=follow)
        return Reply(content_type=LINES, chunks=chunks)

    async def _lines(
        self, identity: Identity, page: HistoryPage, most: int, *, follow: bool
    ) -> AsyncIterator[bytes]:
        """Yield the lines of page after page, at most so many."""
        remaining = most
        while True:
            after, remaining = page.last, remaining - page.count
            if page.count:
                yield page.lines
            # Asked for before reading, so that no round falls between the two.
            news = self._news.next()
            if follow and self._ledger.last_round <= after:
                await news
            if not remaining or (not follow and not page.count):
                return
            page = await self._page(identity, after, min(remaining, ROUNDS_AT_ONCE))

    async def _page(self, identity: Identity, after: int, limit: int) -> HistoryPage:
        if self._ledger.last_round <= after:
            return HistoryPage(b"", after, 0)  # nothing is new, which needs no reader
        while not identity.is_owner:
            wait = self._rates.take(identity.uid, self._clock.now(), HISTORY_COST)
            if not wait:
                break
            await self._clock.sleep(wait)  # its answer has begun: it is slowed, not refused
        agent = None if identity.is_owner else identity.plane
        body = await read_history(
            self._history, identity, "rounds", after, limit, agent, self._since(identity)
        )
        return msgspec.msgpack.decode(body, type=HistoryPage)

    def _since(self, identity: Identity) -> int:
        """The time when the agent began; anything older belongs to another agent of its name."""
        wallet = None if identity.is_owner else self._ledger.account(wallet_of(identity.uid))
        return wallet.opened_at if wallet is not None else 0
