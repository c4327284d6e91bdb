"""
The exchange's application: who asks, how often, and which route answers.

Everybody shows a token. An agent's token is good while its wallet is open, and shows
that agent's own affairs and the public prices; to it, other agents do not exist.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import unquote

from bidplane.exchange.http.asking import ExchangeRequest
from bidplane.exchange.http.news import News
from bidplane.exchange.http.orders import OrderRoutes
from bidplane.exchange.http.parameters import query_of
from bidplane.exchange.http.rounds import RoundRoutes
from bidplane.exchange.http.wallets import WalletRoutes
from bidplane.exchange.instantsales import InstantSales
from bidplane.exchange.rates import HISTORY_COST, Rates
from bidplane.exchange.round.grants import HourlyGrant
from bidplane.exchange.workers.history import History, OwnHistory
from bidplane.http.asgi import App, Receive, Scope, Send, lifespan
from bidplane.http.replies import Reply, answer, refuse, text_reply
from bidplane.http.request import BodyLimit, Request
from bidplane.http.routes import Route, Routes
from bidplane.ledger import wallets
from bidplane.ledger.ledger import Ledger
from bidplane.ledger.records import wallet_of
from bidplane.machinery.clock import Clock
from bidplane.runtime.identity.credentials import Identity, InvalidToken, Tokens
from bidplane.wire import status

PREFIX = "/exchange/v1/"
BODY_MOST = 64 * 1024
_BODY = BodyLimit(BODY_MOST, too_large=f"the body is over {BODY_MOST} bytes")

Handler = Callable[[ExchangeRequest], Awaitable[Reply]]


class ExchangeApp:
    def __init__(
        self,
        ledger: Ledger,
        tokens: Tokens,
        news: News,
        *,
        clock: Clock,
        grant_of: Callable[[str], HourlyGrant | None] = lambda _: None,
        suspended: Callable[[str], bool] = lambda _: False,
        desk: InstantSales | None = None,
        history: History | None = None,
        rates: Rates | None = None,
        problem: Callable[[], str] = lambda: "",
    ) -> None:
        """
        Create the application. `grant_of`: by an agent's uid, what its wallet is granted; None if
        there is no such agent. `history` reads old rounds; without it they are read on this loop.
        `problem`: why nothing may be written now; "" if it may.
        """
        self._ledger, self._tokens, self._clock, self._problem = ledger, tokens, clock, problem
        self._rates = rates or Rates()
        past = history or OwnHistory(ledger)
        sales = desk or InstantSales(ledger)
        purse = WalletRoutes(ledger, past, now=self._now, grant_of=grant_of)
        order = OrderRoutes(ledger, news, sales, past, now=self._now, suspended=suspended)
        rounds = RoundRoutes(ledger, news, past, self._rates, clock=clock)
        # Those that read the past cost more of an agent's rate.
        self.past: Routes[Handler] = Routes(
            Route("GET", "/prices/{pool}/history", order.price_history),
            Route("GET", "/rounds", rounds.rounds),
            Route("GET", "/rounds/{number}", rounds.round),
            Route("GET", "/bids/{uid}/explain", rounds.explain),
            Route("GET", "/wallets/{name}/statement", purse.statement),
        )
        self.routes: Routes[Handler] = Routes(
            Route("GET", "/prices", order.prices),
            Route("POST", "/orders", order.order),
            Route("GET", "/leases", order.leases),
            Route("GET", "/wallets/{name}", purse.wallet),
            Route("POST", "/wallets/{name}/fund", purse.fund),
            Route("POST", "/wallets/{name}/transfer", purse.transfer),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await lifespan(receive, send)
            return
        request = Request(scope, receive)
        await answer(request, send, self._answer(request))

    async def _answer(self, request: Request) -> Reply:
        path = unquote(request.path)
        if not path.startswith(PREFIX) or not wallets.is_text(path):
            raise _not_found(path)
        parts = request.parts[2:]
        if parts == ["healthz"]:
            return text_reply(b"ok")
        identity = self._authenticate(request)
        past = self.past.find(request.method, parts)
        self._take_turn(identity, HISTORY_COST if past else 1.0)
        is_write = request.method == "POST"
        if is_write and (problem := self._problem()):
            raise status.refuse(503, "LedgerLost", problem)
        match = past or self.routes.find(request.method, parts)
        if match is None:
            if self.routes.methods(parts) or self.past.methods(parts):
                message = f"{request.method} is not served here"
                raise status.refuse(405, "MethodNotAllowed", message)
            raise _not_found("/".join(parts))
        body = await request.body(_BODY) if is_write else b""
        query = query_of(request) if past else {}
        return await match.handler(ExchangeRequest(identity, match.arguments, query, body))

    def _take_turn(self, identity: Identity, cost: float) -> None:
        """Refuse an agent that asks too often. Owners are trusted with the whole installation."""
        if identity.is_owner:
            return
        wait = self._rates.take(identity.uid, self._clock.now(), cost)
        if wait:
            message = f"agent {identity.plane!r} asks the exchange too often: try again in {wait} s"
            raise status.refuse(429, "TooManyRequests", message, retry_after=wait)

    def _authenticate(self, request: Request) -> Identity:
        if not request.bearer:
            raise status.unauthorized("show a bearer token")
        try:
            identity = self._tokens.verify(request.bearer, now=self._clock.now())
        except InvalidToken as error:
            raise status.unauthorized(str(error)) from error
        if not identity.is_owner:
            wallet = self._ledger.account(wallet_of(identity.uid))
            if wallet is None or not wallet.is_open or wallet.name != identity.plane:
                message = f"agent {identity.plane!r} has no open wallet: it was deleted, or is new"
                raise status.unauthorized(message)
        return identity

    def _now(self) -> int:
        return round(self._clock.now() * 1000)


def closed_app(problem: str) -> App:
    """An application that refuses every request, and says why."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await lifespan(receive, send)
        else:
            await refuse(send, 503, "LedgerLost", problem)

    return app


def _not_found(path: str) -> status.StatusError:
    printable = path.encode(errors="replace").decode()
    return status.refuse(404, "NotFound", f"the exchange serves nothing at {printable!r}")
