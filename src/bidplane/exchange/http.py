"""
The exchange over HTTP: prices, rounds, wallets. A plain ASGI application.

Everybody shows a token. An agent's token is good while its wallet is open, and shows
that agent's own affairs and the public prices; to it, other agents do not exist.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs

import msgspec

from bidplane.api import exchange as api
from bidplane.api.money import format_credits, parse_credits, parse_price
from bidplane.core.market import LotResult
from bidplane.exchange import views
from bidplane.exchange.desk import Desk, NoSale
from bidplane.ledger import wallets
from bidplane.ledger.ledger import Ledger
from bidplane.ledger.records import Account, wallet_of
from bidplane.ledger.statement import statement
from bidplane.ledger.wallets import Funding, Moving
from bidplane.machinery.clock import Clock
from bidplane.runtime.credentials import Identity, InvalidToken, Tokens

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

PREFIX = "/exchange/v1/"
BODY_MOST = 64 * 1024
ROUNDS_AT_ONCE = 100


_NOT_A_TEXT = "key and memo must be plain text: they hold a NUL, or half of a character"


class Refusal(Exception):
    """An answer that is not what was asked for; becomes a Kubernetes Status."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message


class News:
    """Tells those who follow that there is a new round; holds what the last one said."""

    def __init__(self) -> None:
        self.lots: tuple[LotResult, ...] | None = None
        self._waiting: list[asyncio.Future[None]] = []

    def publish(self, lots: tuple[LotResult, ...], *, recorded: bool) -> None:
        self.lots = lots
        if recorded:
            waiting, self._waiting = self._waiting, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    def next(self) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        return future


class ExchangeApp:
    def __init__(
        self,
        ledger: Ledger,
        tokens: Tokens,
        news: News,
        *,
        clock: Clock,
        cap_of: Callable[[str], int | None] = lambda _: None,
        suspended: Callable[[str], bool] = lambda _: False,
        desk: Desk | None = None,
    ) -> None:
        """`cap_of`: by an agent's uid, what its wallet may carry over; None if there is none."""
        self._suspended = suspended
        self._ledger = ledger
        self._desk = desk or Desk(ledger)
        self._cap_of = cap_of
        self._tokens = tokens
        self._news = news
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        try:
            path = scope["path"]
            if not path.startswith(PREFIX):
                raise _not_found(path)
            parts = path.removeprefix(PREFIX).strip("/").split("/")
            if parts == ["healthz"]:
                await _answer(send, 200, b"ok", b"text/plain")
                return
            identity = self._authenticate(scope)
            if parts == ["rounds"] and scope["method"] == "GET":
                await self._rounds(identity, scope, receive, send)
                return
            body = await _read(receive) if scope["method"] == "POST" else b""
            answer = self._route(identity, scope["method"], parts, body)
            await _answer(send, 200, msgspec.json.encode(answer))
        except Refusal as refusal:
            await _refuse(send, refusal)

    def _route(self, who: Identity, method: str, parts: list[str], body: bytes) -> Any:
        match method, parts:
            case "GET", ["prices"]:
                return views.prices(self._ledger, self._news.lots, self._desk)
            case "GET", ["prices", pool, "history"]:
                return views.history(self._ledger, pool)
            case "POST", ["orders"]:
                return self._order(who, body)
            case "GET", ["rounds", number]:
                return self._round(who, number)
            case "GET", ["bids", uid, "explain"]:
                return self._explain(who, uid)
            case "GET", ["leases"]:
                return self._leases(who)
            case "GET", ["wallets", name]:
                return self._wallet_view(self._wallet(who, name))
            case "GET", ["wallets", name, "statement"]:
                return self._statement(self._wallet(who, name))
            case "POST", ["wallets", name, "fund"]:
                return self._fund(who, name, body)
            case "POST", ["wallets", name, "transfer"]:
                return self._transfer(who, name, body)
            case _, ["prices"] | ["orders"] | ["leases"] | ["rounds"] | ["rounds", _] | [
                "wallets",
                _,
            ]:
                raise Refusal(405, "MethodNotAllowed", f"{method} is not served here")
            case _:
                raise _not_found("/".join(parts))

    def _authenticate(self, scope: Scope) -> Identity:
        scheme, _, token = dict(scope["headers"]).get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer" or not token:
            raise Refusal(401, "Unauthorized", "show a bearer token")
        try:
            who = self._tokens.verify(token.decode(errors="replace"), now=self._clock.now())
        except InvalidToken as error:
            raise Refusal(401, "Unauthorized", str(error)) from error
        if not who.is_owner:
            wallet = self._ledger.account(wallet_of(who.uid))
            if wallet is None or not wallet.is_open or wallet.name != who.plane:
                message = f"agent {who.plane!r} has no open wallet: it was deleted, or is new"
                raise Refusal(401, "Unauthorized", message)
        return who

    def _wallet(self, who: Identity, name: str) -> Account:
        """The wallet of the agent of that name; the newest, if the name was used again."""
        found = self._ledger.wallets_named(name)
        if not who.is_owner:
            found = [account for account in found if account.id == wallet_of(who.uid)]
        if not found:
            raise Refusal(404, "NotFound", f"there is no wallet of an agent {name!r}")
        return next((a for a in reversed(found) if a.is_open), found[-1])

    def _wallet_view(self, wallet: Account) -> api.Wallet:
        accruing = sum(
            lease.meter(self._now).due
            for lease in self._ledger.live_leases()
            if lease.wallet == wallet.id
        )
        return views.wallet_view(wallet, accruing)

    def _statement(self, wallet: Account) -> api.Statement:
        found = statement(self._ledger, wallet.id.partition("/")[2], now=self._now)
        if found is None:
            raise Refusal(404, "NotFound", f"there is no wallet of an agent {wallet.name!r}")
        return views.statement_view(found)

    def _fund(self, who: Identity, name: str, body: bytes) -> api.Wallet:
        if not who.is_owner:
            raise Refusal(403, "Forbidden", "only an owner may fund a wallet")
        wallet = self._wallet(who, name)
        try:
            request = msgspec.json.decode(body, type=api.FundRequest)
            amount = parse_credits(request.amount)
        except ValueError as error:
            raise Refusal(400, "BadRequest", str(error)) from error
        if not request.key:
            raise Refusal(400, "BadRequest", "give a key: asking twice with one funds once")
        uid = wallet.id.partition("/")[2]
        with self._ledger.commit(self._now) as commit:
            done = wallets.fund(commit, uid=uid, amount=amount, key=request.key, memo=request.memo)
        match done:
            case Funding.NOT_AN_AMOUNT:
                raise Refusal(400, "BadRequest", "the amount must be more than zero")
            case Funding.NOT_A_TEXT:
                raise Refusal(400, "BadRequest", _NOT_A_TEXT)
            case Funding.NO_SUCH_WALLET:
                raise Refusal(409, "Conflict", f"the wallet of {name!r} is closed")
            case Funding.KEY_REUSED:
                message = f"key {request.key!r} was used for an amount other than"
                raise Refusal(409, "Conflict", f"{message} {format_credits(amount)}")
        return self._wallet_view(self._wallet(who, name))

    def _transfer(self, who: Identity, name: str, body: bytes) -> api.Wallet:
        sender = self._wallet(who, name)
        try:
            request = msgspec.json.decode(body, type=api.TransferRequest)
            amount = parse_credits(request.amount)
        except ValueError as error:
            raise Refusal(400, "BadRequest", str(error)) from error
        if not request.key:
            raise Refusal(400, "BadRequest", "give a key, of plain text: with one, it moves once")
        if not wallets.is_text(request.key + request.memo):
            raise Refusal(400, "BadRequest", _NOT_A_TEXT)
        found = [wallet for wallet in self._ledger.wallets_named(request.to) if wallet.is_open]
        receiver = found[-1].id.partition("/")[2] if found else ""
        cap = self._cap_of(receiver)
        if cap is None:
            message = f"there is no wallet of an agent {request.to!r} to transfer to"
            raise Refusal(404, "NotFound", message)
        with self._ledger.commit(self._now) as commit:
            done = wallets.transfer(
                commit,
                sender=sender.id.partition("/")[2],
                receiver=receiver,
                amount=amount,
                cap=cap,
                key=request.key,
                memo=request.memo,
            )
        if done not in (Moving.DONE, Moving.DUPLICATE):
            raise _not_moved(done, request, sender)
        return self._wallet_view(self._wallet(who, name))

    def _leases(self, who: Identity) -> api.Leases:
        found = [lease for lease in self._ledger.live_leases() if not lease.is_kept]
        if not who.is_owner:
            found = [lease for lease in found if lease.wallet == wallet_of(who.uid)]
        return api.Leases(leases=[views.lease_view(lease, self._now) for lease in found])

    def _order(self, who: Identity, body: bytes) -> api.Order:
        if who.is_owner:
            raise Refusal(403, "Forbidden", "an order is paid from a wallet: use an agent's token")
        try:
            request = msgspec.json.decode(body, type=api.OrderRequest)
            price = parse_price(request.max_price)
        except ValueError as error:
            raise Refusal(400, "BadRequest", str(error)) from error
        if not request.key:
            raise Refusal(400, "BadRequest", "give a key: asking twice with one buys once")
        if not wallets.is_text(request.key):
            raise Refusal(400, "BadRequest", _NOT_A_TEXT)
        if self._suspended(who.uid):
            raise Refusal(409, "Suspended", "the agent is suspended: its owner can resume it")
        wallet = self._wallet(who, who.plane)
        sold = self._desk.buy(
            wallet,
            pool=request.pool,
            max_price=price,
            key=request.key,
            now=self._now,
            share=request.share,
        )
        if isinstance(sold, NoSale):
            code = 404 if sold.reason == "NoSuchPool" else 409
            raise Refusal(code, sold.reason, sold.message)
        return views.order_view(sold)

    def _round(self, who: Identity, text: str) -> api.RoundRecord:
        """Everybody's offers are in it, so it is for owners."""
        if not who.is_owner:
            message = "only an owner may read a whole round; your own outcomes are at rounds?after="
            raise Refusal(403, "Forbidden", message)
        if not text.isdigit():
            raise Refusal(400, "BadRequest", f"{text!r} is not the number of a round")
        found = self._ledger.rounds_after(int(text) - 1, limit=1)
        if not found or found[0].number != int(text):
            last = self._ledger.last_round
            raise Refusal(404, "NotFound", f"there is no round {text}; the last is {last}")
        return views.round_record(found[0])

    def _explain(self, who: Identity, uid: str) -> api.Explanation:
        found = views.explanation(self._ledger, uid, agent=None if who.is_owner else who.plane)
        if found is None:
            message = f"no recent round had a bid with the uid {uid!r}; its status may say more"
            raise Refusal(404, "NotFound", message)
        return found

    async def _rounds(self, who: Identity, scope: Scope, receive: Receive, send: Send) -> None:
        """One round per line; with `follow`, new ones as they happen."""
        query = parse_qs(scope.get("query_string", b"").decode())
        follow = query.get("follow", ["false"])[0] in ("true", "1")
        text = query.get("after", ["0"])[0]
        if not text.lstrip("-").isdigit():
            raise Refusal(400, "BadRequest", f"after={text!r} is not the number of a round")
        # Below zero counts from the end: after=-10 is the last ten.
        after = int(text) if int(text) >= 0 else max(0, self._ledger.last_round + int(text))
        await send(_start(200, b"application/x-ndjson"))
        gone = asyncio.ensure_future(_until_gone(receive))
        try:
            while True:
                # Asked for before reading, so that no round falls between the two.
                news = self._news.next()
                rounds = self._ledger.rounds_after(after, limit=ROUNDS_AT_ONCE)
                for record in rounds:
                    view = views.round_view(record, agent=None if who.is_owner else who.plane)
                    line = msgspec.json.encode(view) + b"\n"
                    await send({"type": "http.response.body", "body": line, "more_body": True})
                    after = record.number
                if rounds:
                    continue
                if not follow:
                    break
                await asyncio.wait({news, gone}, return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    return
            await send({"type": "http.response.body", "body": b""})
        finally:
            gone.cancel()

    @property
    def _now(self) -> int:
        return round(self._clock.now() * 1000)


def _not_found(path: str) -> Refusal:
    return Refusal(404, "NotFound", f"the exchange serves nothing at {path!r}")


def _start(code: int, content_type: bytes) -> dict[str, Any]:
    headers = [(b"content-type", content_type)]
    return {"type": "http.response.start", "status": code, "headers": headers}


def _not_moved(done: Moving, request: api.TransferRequest, sender: Account) -> Refusal:
    match done:
        case Moving.NOT_AN_AMOUNT:
            return Refusal(400, done, "the amount must be more than zero")
        case Moving.SAME_WALLET:
            return Refusal(400, done, f"{request.to!r} is the sender itself")
        case Moving.WALLET_TOO_SMALL:
            free = format_credits(sender.available)
            return Refusal(409, done, f"{sender.name!r} has {free} free, not {request.amount}")
        case Moving.OVER_CAP:
            message = f"{request.to!r} would have more than it may carry over: send less, or later"
            return Refusal(409, done, message)
        case Moving.KEY_REUSED:
            return Refusal(409, done, f"key {request.key!r} was used for another transfer")
        case _:
            return Refusal(409, done, "one of the two wallets is closed")


async def _answer(
    send: Send, code: int, body: bytes, content_type: bytes = b"application/json"
) -> None:
    await send(_start(code, content_type))
    await send({"type": "http.response.body", "body": body})


async def _refuse(send: Send, refusal: Refusal) -> None:
    status = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": refusal.message,
        "reason": refusal.reason,
        "code": refusal.code,
    }
    await _answer(send, refusal.code, msgspec.json.encode(status))


async def _read(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > BODY_MOST:
            raise Refusal(413, "RequestEntityTooLarge", f"the body is over {BODY_MOST} bytes")
        if not message.get("more_body", False):
            return bytes(body)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        kind = (await receive())["type"]
        await send({"type": f"{kind}.complete"})
        if kind == "lifespan.shutdown":
            return
