"""The exchange over HTTP: who sees what, and how it says no."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bidplane.api.http import exchange as api
from bidplane.api.lease import Origin
from bidplane.api.money import parse_credits
from bidplane.core.market import RoundInput, clear_round
from bidplane.exchange.engine import Engine
from bidplane.exchange.http import ExchangeApp, News
from bidplane.exchange.round.grants import HourlyGrant
from bidplane.exchange.snapshot import HostSnapshot
from bidplane.ledger import Ledger, wallets
from bidplane.ledger.records import lease_id
from bidplane.runtime.identity.credentials import Identity, Tokens

from .words import PRICE, agent, bid, gpus, pool

NOW = 1_800_000_000.0


class StoppedClock:
    def now(self) -> float:
        return NOW

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing here sleeps")


class Site:
    """An exchange with two agents, of which one leases; asked as a client would."""

    def __init__(self, path: Path) -> None:
        self.ledger = Ledger.open(path, durable=False)
        self.engine = Engine(self.ledger)
        self.tokens = Tokens(b"key")
        self.news = News()
        grant = HourlyGrant(refill=10**11, cap=10**12, is_default=True)
        self.grants = {"uid-trainer": grant, "uid-chat": grant}
        self.app = ExchangeApp(
            self.ledger,
            self.tokens,
            self.news,
            clock=StoppedClock(),
            desk=self.engine.desk,
            grant_of=self.grants.get,
        )
        self.world = HostSnapshot(
            agents=(agent("trainer"), agent("chat")),
            pools=(pool(),),
            devices=gpus(4),
            bids=(
                bid("b1", "trainer", 4, PRICE),
                bid("b2", "chat", 4, PRICE // 2, created=int(NOW) - 20),
            ),
        )
        self.round(NOW - 20)
        self.round(NOW - 10, claimed=frozenset({lease_id("b1")}))

    def round(self, at: float, **changes: Any) -> None:
        self.world = msgspec.structs.replace(self.world, **changes)
        report = self.engine.run_round(self.world, at)
        self.news.publish(report.result.lots, recorded=report.recorded)

    def token(self, plane: str, uid: str | None = None) -> str:
        uid = f"uid-{plane}" if uid is None else uid
        expires = int(NOW) + 60
        return self.tokens.issue(Identity(plane=plane, uid=uid, user=plane, expires=expires))

    def ask(
        self, who: str, path: str, method: str = "GET", body: Any = None, query: str = ""
    ) -> tuple[int, bytes]:
        """`who` is a plane's name, a token with a dot in it, or "" for nobody."""
        token = who if "." in who or not who else self.token(who)
        return asyncio.run(self._ask(token, path, method, body, query))

    async def _ask(
        self, token: str, path: str, method: str, body: Any, query: str
    ) -> tuple[int, bytes]:
        sent: list[Any] = []
        messages = iter([{"type": "http.request", "body": msgspec.json.encode(body)}])

        async def receive() -> Any:
            return next(messages, {"type": "http.disconnect"})

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"authorization", f"Bearer {token}".encode())] if token else []
        scope = {
            "type": "http",
            "method": method,
            "path": f"/exchange/v1/{path}",
            "query_string": query.encode(),
            "headers": headers,
        }
        await self.app(scope, receive, send)
        return sent[0]["status"], b"".join(m.get("body", b"") for m in sent[1:])


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path / "ledger.db")
    yield made
    made.ledger.close()


def refusal(answer: tuple[int, bytes]) -> tuple[int, str, str]:
    status = msgspec.json.decode(answer[1])
    assert (status["kind"], status["status"], status["code"]) == ("Status", "Failure", answer[0])
    return answer[0], status["reason"], status["message"]


def test_health_needs_no_token(site: Site) -> None:
    assert site.ask("", "healthz") == (200, b"ok")


def test_everything_else_does(site: Site) -> None:
    for path in ("prices", "rounds", "leases", "wallets/chat", "wallets/chat/statement"):
        assert refusal(site.ask("", path))[:2] == (401, "Unauthorized")
    assert refusal(site.ask("a.b.c", "prices"))[2] == (
        "the token was not made by this installation"
    )


def test_an_agent_sees_prices(site: Site) -> None:
    code, body = site.ask("chat", "prices")
    (priced,) = msgspec.json.decode(body, type=api.Prices).pools
    assert "1" in priced.classes
    assert priced.classes["1"] == priced.price
    prices = msgspec.json.decode(body, type=api.Prices)
    assert code == 200
    assert [(p.pool, p.devices, p.leased) for p in prices.pools] == [("h100", 4, 4)]


def test_an_agent_sees_its_own_wallet_and_no_other(site: Site) -> None:
    code, body = site.ask("trainer", "wallets/trainer")
    wallet = msgspec.json.decode(body, type=api.Wallet)
    assert (code, wallet.agent, wallet.balance, wallet.held) == (200, "trainer", "10.00", "0.24")
    # Ten seconds of four GPUs. Staying costs 1.80, what `chat` offers, over a weight of 1.249.
    assert wallet.accruing == "0.016013"
    assert refusal(site.ask("trainer", "wallets/chat"))[:2] == (404, "NotFound")
    assert refusal(site.ask("trainer", "wallets/nobody"))[:2] == (404, "NotFound")
    assert refusal(site.ask("trainer", "wallets/chat/statement"))[:2] == (404, "NotFound")


def test_an_owner_sees_every_wallet(site: Site) -> None:
    assert site.ask("host", "wallets/chat")[0] == 200
    assert refusal(site.ask("host", "wallets/nobody"))[0] == 404


def test_the_token_of_a_deleted_agent_is_dead(site: Site) -> None:
    old = site.token("chat")
    site.round(NOW, agents=(agent("trainer"), agent("chat", deleting=True)), bids=())
    assert refusal(site.ask(old, "prices"))[:2] == (401, "Unauthorized")
    # Another agent of that name does not bring it back.
    again = msgspec.structs.replace(agent("chat"), uid="another")
    site.round(NOW, agents=(agent("trainer"), again))
    assert refusal(site.ask(old, "wallets/chat"))[0] == 401
    assert site.ask(site.token("chat", "another"), "wallets/chat")[0] == 200


def test_the_token_of_one_agent_with_the_name_of_another_is_dead(site: Site) -> None:
    assert refusal(site.ask(site.token("chat", "uid-trainer"), "wallets/chat"))[0] == 401


def test_a_statement_adds_up(site: Site) -> None:
    site.round(NOW, left=frozenset({lease_id("b1")}))
    body = site.ask("trainer", "wallets/trainer/statement")[1]
    found = msgspec.json.decode(body, type=api.StatementView)
    assert [line.kind for line in found.lines] == ["refill", "rent", "levy"]
    assert sum(float(line.amount) for line in found.lines) == pytest.approx(float(found.balance))
    assert found.lines[-1].balance == found.balance == "9.98"


def test_only_an_owner_funds(site: Site) -> None:
    body = {"amount": "5.00", "key": "gift"}
    assert refusal(site.ask("chat", "wallets/chat/fund", "POST", body))[:2] == (403, "Forbidden")
    for _ in range(2):  # one key, once
        code, answer = site.ask("host", "wallets/chat/fund", "POST", body)
        assert (code, msgspec.json.decode(answer)["balance"]) == (200, "15.00")
    other = {"amount": "6.00", "key": "gift"}
    assert refusal(site.ask("host", "wallets/chat/fund", "POST", other))[:2] == (409, "Conflict")


@pytest.mark.parametrize(
    "body",
    [
        {"amount": "-5", "key": "k"},
        {"amount": "0", "key": "k"},
        {"amount": "much", "key": "k"},
        {"amount": "5", "key": ""},
        {"amount": "5"},
        {"amount": 5, "key": "k"},
        [],
        None,
    ],
)
def test_a_bad_funding_moves_nothing(site: Site, body: Any) -> None:
    head = site.ledger.head
    assert refusal(site.ask("host", "wallets/chat/fund", "POST", body))[:2] == (400, "BadRequest")
    assert site.ledger.head == head


def test_a_closed_wallet_cannot_be_funded(site: Site) -> None:
    site.round(NOW, agents=(agent("trainer"),), bids=())
    body = {"amount": "5", "key": "k"}
    assert refusal(site.ask("host", "wallets/chat/fund", "POST", body))[:2] == (409, "Conflict")


def test_an_agent_sees_its_own_leases(site: Site) -> None:
    mine = msgspec.json.decode(site.ask("trainer", "leases")[1], type=api.Leases)
    assert [(v.agent, v.phase, v.max_price) for v in mine.leases] == [("trainer", "Active", "3.60")]
    assert msgspec.json.decode(site.ask("chat", "leases")[1])["leases"] == []
    assert len(msgspec.json.decode(site.ask("host", "leases")[1])["leases"]) == 1


def lines(body: bytes) -> list[api.RoundSummary]:
    return [msgspec.json.decode(line, type=api.RoundSummary) for line in body.splitlines()]


def test_rounds_show_an_agent_its_own_outcomes(site: Site) -> None:
    first = lines(site.ask("chat", "rounds")[1])[0]
    assert [(o.agent, o.event, o.offer) for o in first.outcomes] == [("chat", "Lost", "1.80")]
    assert first.outcomes[0].message == (
        "Outbid: your maximum of 1.80 credits per GPU-hour lost to 3.61. To win now, set"
        " bidplane.dev/max-price to 3.61."
    )
    assert first.bids == 2
    everything = lines(site.ask("host", "rounds")[1])[0]
    assert {o.agent for o in everything.outcomes} == {"trainer", "chat"}
    assert lines(site.ask("chat", "rounds", query="after=999")[1]) == []
    assert len(lines(site.ask("chat", "rounds", query="after=-1")[1])) == 1
    assert refusal(site.ask("chat", "rounds", query="after=x"))[0] == 400


def test_rounds_can_be_followed(site: Site) -> None:
    async def follow() -> list[api.RoundSummary]:
        body = bytearray()
        stop = asyncio.Event()
        arrived: asyncio.Queue[None] = asyncio.Queue()

        async def receive() -> Any:
            await stop.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message.get("body"):
                body.extend(message["body"])
                arrived.put_nowait(None)

        scope = {
            "type": "http",
            "method": "GET",
            "path": "/exchange/v1/rounds",
            "query_string": f"after={site.ledger.last_round}&follow=true".encode(),
            "headers": [(b"authorization", f"Bearer {site.token('host')}".encode())],
        }
        task = asyncio.create_task(site.app(scope, receive, send))
        await asyncio.sleep(0)
        for n in range(2):
            site.round(NOW + n, bids=(*site.world.bids, bid(f"new-{n}", "chat", 4, 100_000)))
            await arrived.get()
        stop.set()
        await task
        return lines(bytes(body))

    last = site.ledger.last_round
    assert [r.number for r in asyncio.run(follow())] == [last + 1, last + 2]


def test_what_is_not_served_says_so(site: Site) -> None:
    assert refusal(site.ask("host", "nothing"))[:2] == (404, "NotFound")
    assert refusal(site.ask("host", "prices", "POST", {}))[:2] == (405, "MethodNotAllowed")
    assert refusal(site.ask("host", "prices", "DELETE"))[:2] == (405, "MethodNotAllowed")
    big = {"amount": "5" * 100_000, "key": "k"}
    assert refusal(site.ask("host", "wallets/chat/fund", "POST", big))[0] == 413


def test_a_new_wallet_of_an_old_name_is_the_one_that_is_shown(site: Site) -> None:
    with site.ledger.commit(round(NOW * 1000)) as commit:
        wallets.close_wallet(commit, uid="uid-chat")
        wallets.open_wallet(commit, uid="new", name="chat", owner="chat")
    body = site.ask("host", "wallets/chat")[1]
    assert msgspec.json.decode(body, type=api.Wallet).state == "Open"


def test_a_saved_round_is_the_owners_and_clears_again_to_the_same(site: Site) -> None:
    code, answer = site.ask("host", "rounds/1")
    record = msgspec.json.decode(answer, type=api.RoundRecord)
    assert (code, record.number) == (200, 1)
    again = clear_round(msgspec.json.decode(record.input, type=RoundInput))
    assert msgspec.json.encode(again) == bytes(record.result)
    assert refusal(site.ask("trainer", "rounds/1"))[:2] == (403, "Forbidden")
    assert refusal(site.ask("host", "rounds/99"))[0] == 404
    assert refusal(site.ask("host", "rounds/0"))[0] == 404
    assert refusal(site.ask("host", "rounds/one"))[0] == 400


def test_why_a_bid_won_or_lost_is_told_to_its_agent_and_to_owners(site: Site) -> None:
    def explain(who: str, uid: str) -> api.Explanation:
        code, answer = site.ask(who, f"bids/{uid}/explain")
        assert code == 200
        return msgspec.json.decode(answer, type=api.Explanation)

    lost = explain("chat", "b2")
    assert (lost.event, lost.reason, lost.offer) == ("Lost", "Outbid", "1.80")
    assert lost.message.startswith("Outbid: your maximum of 1.80 credits per GPU-hour lost to 3.61")
    assert lost.price_to_win == "3.600001"
    # Four GPUs for an hour, at the least that would have won.
    assert parse_credits(lost.cost_per_hour) == 4 * parse_credits(lost.price_to_win)
    won = explain("host", "b1")
    assert (won.event, won.gpus_sold, won.round) == ("Won", 4, 1)
    assert won.lease == f"lease-{lease_id('b1')}"
    assert won.message == f"won 4 GPUs in h100 at {won.price} per GPU-hour"
    assert refusal(site.ask("chat", "bids/b1/explain"))[0] == 404
    assert refusal(site.ask("host", "bids/b9/explain"))[0] == 404


def transfer(site: Site, who: str, sender: str, to: str, amount: str, key: str = "k") -> Any:
    body = {"to": to, "amount": amount, "key": key}
    return site.ask(who, f"wallets/{sender}/transfer", "POST", body)


def test_an_agent_transfers_from_its_own_wallet_and_no_other(site: Site) -> None:
    before = site.ledger.wallets_named("chat")[0].posted
    code, body = transfer(site, "trainer", "trainer", "chat", "1.5")
    assert code == 200
    assert msgspec.json.decode(body, type=api.Wallet).agent == "trainer"
    assert site.ledger.wallets_named("chat")[0].posted == before + 1_500_000
    assert transfer(site, "trainer", "trainer", "chat", "1.5")[0] == 200  # once is enough
    assert site.ledger.wallets_named("chat")[0].posted == before + 1_500_000
    assert refusal(transfer(site, "trainer", "chat", "trainer", "1"))[:2] == (404, "NotFound")


def test_a_transfer_that_cannot_be_is_refused_by_name(site: Site) -> None:
    head = site.ledger.head
    site.grants["uid-chat"] = HourlyGrant(refill=1, cap=1, is_default=False)
    for to, amount, reason in (
        ("chat", "1", "NotTransferred"),
        ("chat", "0", "NotAnAmount"),
        ("chat", "-1", "BadRequest"),
        ("chat", "a lot", "BadRequest"),
        ("trainer", "1", "SameWallet"),
        ("nobody", "1", "NotTransferred"),
        ("chat", "99999", "WalletTooSmall"),
    ):
        assert refusal(transfer(site, "trainer", "trainer", to, amount))[1] == reason
    del site.grants["uid-chat"]  # not known to the host: nothing says what it may carry over
    assert refusal(transfer(site, "trainer", "trainer", "chat", "1"))[1] == "NotTransferred"
    assert refusal(transfer(site, "trainer", "trainer", "chat", "1", key=""))[1] == "BadRequest"
    assert site.ledger.head == head


def test_an_order_over_http_is_filled_or_refused_by_name(site: Site) -> None:
    devices = tuple(d for n in range(5) for d in gpus(8, node=f"n{n}"))
    floating = msgspec.structs.replace(pool(), float_percent=5)
    site.round(NOW, pools=(floating,), devices=devices, bids=())
    order = {"pool": "h100", "maxPrice": "1.00", "key": "k1"}
    code, answer = site.ask("chat", "orders", "POST", order)
    assert code == 200
    bought = msgspec.json.decode(answer, type=api.Order)
    assert (bought.pool, bought.max_price) == ("h100", "1.00")
    (row,) = [row for row in site.ledger.live_leases() if row.bid_name == bought.bid]
    assert (row.origin, row.bid_name) == (Origin.ORDER, bought.bid), "what a pod names to run on it"
    code, answer = site.ask("chat", "leases")
    assert [lease.name for lease in msgspec.json.decode(answer, type=api.Leases).leases] == [
        bought.lease
    ]
    for wrong, expected in (
        ({"maxPrice": "-1"}, (400, "BadRequest")),
        ({"maxPrice": "1e9"}, (400, "BadRequest")),
        ({"key": ""}, (400, "BadRequest")),
        ({"pool": "nowhere", "key": "k2"}, (404, "NoSuchPool")),
        ({"maxPrice": "0.000001", "key": "k2"}, (409, "PriceTooLow")),
        ({"maxPrice": "2.00"}, (409, "KeyReused")),
    ):
        head = site.ledger.head
        assert refusal(site.ask("chat", "orders", "POST", {**order, **wrong}))[:2] == expected
        assert site.ledger.head == head
    assert refusal(site.ask("host", "orders", "POST", order))[:2] == (403, "Forbidden")


def test_prices_say_where_they_may_go_and_where_they_were(site: Site) -> None:
    _, answer = site.ask("chat", "prices")
    price = msgspec.json.decode(answer, type=api.Prices).pools[0]
    low, high = parse_credits(price.next_low), parse_credits(price.next_high)
    assert 100_000 <= low <= parse_credits(price.base) < high < 2 * parse_credits(price.base)
    code, answer = site.ask("chat", "prices/h100/history")
    history = msgspec.json.decode(answer, type=api.PriceHistory)
    rounds = [p.round for p in history.prices]
    assert (code, rounds) == (200, list(range(1, site.ledger.last_round + 1)))
    assert history.prices[-1].leased == 4
