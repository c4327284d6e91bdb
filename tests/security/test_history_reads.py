"""
Who reads all of the exchange's history takes nothing from the loop that runs rounds, delays
other readers by one page, and is told to slow down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bidplane.exchange.http import ExchangeApp
from bidplane.exchange.http.rounds import ROUNDS_AT_ONCE
from bidplane.exchange.rates import BURST, HISTORY_COST, PER_SECOND, Rates
from bidplane.exchange.workers.history import HistoryReader, OwnHistory, Unreadable
from bidplane.exchange.workers.historyprocess import HistoryPage
from exchange.test_http import NOW, Site
from exchange.words import PRICE, bid


def play(path: Path, story: Callable[[Site, HistoryReader], Awaitable[None]]) -> None:
    async def run() -> None:
        site, reader = Site(path), HistoryReader(path)
        try:
            await story(site, reader)
        finally:
            await reader.close()
            site.ledger.close()

    asyncio.run(run())


def test_a_process_of_its_own_answers_as_the_exchange_would(tmp_path: Path) -> None:
    async def story(site: Site, reader: HistoryReader) -> None:
        here = OwnHistory(site.ledger)
        for question in (
            ("rounds", 0, 10, None),
            ("rounds", 0, 10, "chat"),
            ("round_record", 1),
            ("round_record", 99),
            ("explanation", "b1", "trainer"),
            ("explanation", "b1", "chat"),
            ("statement_page", "uid-trainer", int(NOW * 1000), 1),
            ("history", "h100"),
        ):
            answer = await reader.read("r", *question)
            assert answer == await here.read("r", *question)
        # What was committed since is seen, though the reader was opened before.
        site.round(NOW, bids=(*site.world.bids, bid("b3", "chat", 4, 9 * PRICE)))
        page = msgspec.msgpack.decode(
            await reader.read("r", "rounds", 1, 10, None), type=HistoryPage
        )
        assert page.last == site.ledger.last_round

    play(tmp_path / "ledger.db", story)


def test_a_reader_that_cannot_answer_is_replaced(tmp_path: Path) -> None:
    async def story(site: Site, reader: HistoryReader) -> None:
        reader._seconds = 0  # nothing is read in no time
        with pytest.raises(Unreadable, match="within"):
            await reader.read("r", "history", "h100")
        reader._seconds = 60
        assert await reader.read("r", "history", "h100")

    play(tmp_path / "ledger.db", story)


def test_readers_take_turns(tmp_path: Path) -> None:
    """Twenty questions of one are asked at once, then one of another: it is the second answered."""
    answered: list[str] = []

    async def story(site: Site, reader: HistoryReader) -> None:
        async def ask(question: bytes, *, seconds: float) -> bytes:
            await asyncio.sleep(0)
            return b""

        reader._worker.ask = ask  # type: ignore[method-assign]

        async def read(who: str) -> None:
            await reader.read(who, "history", "h100")
            answered.append(who)

        await asyncio.gather(*(read("eve") for _ in range(20)), read("chat"))

    play(tmp_path / "ledger.db", story)
    assert "chat" in answered[:2]
    assert len(answered) == 21


def request(app: ExchangeApp, token: str, path: str, query: str = "") -> tuple[int, Any, bytes]:
    sent: list[Any] = []

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": f"/exchange/v1/{path}",
        "query_string": query.encode(),
        "headers": [(b"authorization", f"Bearer {token}".encode())],
    }
    asyncio.run(app(scope, receive, send))
    return (
        sent[0]["status"],
        dict(sent[0]["headers"]),
        b"".join(message.get("body", b"") for message in sent[1:]),
    )


def test_an_agent_that_asks_too_often_hears_when_to_come_back(tmp_path: Path) -> None:
    site = Site(tmp_path / "ledger.db")
    token = site.token("chat")
    codes = [request(site.app, token, "prices")[0] for _ in range(int(BURST) + 1)]
    assert codes == [200] * int(BURST) + [429]
    code, headers, body = request(site.app, token, "bids/b2/explain")
    assert code == 429
    assert int(headers[b"retry-after"]) == 1
    assert "asks the exchange too often" in msgspec.json.decode(body)["message"]
    # Neighbours and owners are served meanwhile.
    assert request(site.app, site.token("trainer"), "prices")[0] == 200
    site.ledger.close()


def test_retry_after_is_true() -> None:
    rates = Rates(per_second=0.5, burst=10)
    assert [rates.take("eve", 0.0) for _ in range(10)] == [0] * 10
    wait = rates.take("eve", 0.0)
    assert wait == 2
    assert rates.take("eve", wait - 0.5) > 0
    assert rates.take("eve", float(wait)) == 0
    assert rates.take("chat", 0.0) == 0


def test_history_costs_more_than_a_price() -> None:
    rates = Rates()
    served = sum(rates.take("eve", 0.0, HISTORY_COST) == 0 for _ in range(1000))
    assert served == BURST / HISTORY_COST < PER_SECOND


def test_rounds_come_in_pages_up_to_a_limit(tmp_path: Path) -> None:
    site = Site(tmp_path / "ledger.db")
    for n in range(2 * ROUNDS_AT_ONCE):
        bids = (*site.world.bids[:2], bid(f"x{n}", "chat", 4, PRICE // 3))
        site.round(NOW + n, bids=bids)
    last = site.ledger.last_round
    assert last > 2 * ROUNDS_AT_ONCE
    owner = site.token("host", "host")
    *_, whole = request(site.app, owner, "rounds", "after=0")
    numbers = [msgspec.json.decode(line)["number"] for line in whole.splitlines()]
    assert numbers == list(range(1, last + 1))
    *_, some = request(site.app, owner, "rounds", "after=3&limit=25")
    numbers = [msgspec.json.decode(line)["number"] for line in some.splitlines()]
    assert numbers == list(range(4, 29))
    site.ledger.close()
