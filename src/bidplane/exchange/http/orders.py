"""Prices, orders at once, and live leases over HTTP."""

from __future__ import annotations

from collections.abc import Callable

from bidplane.api.http import exchange as api
from bidplane.api.money import parse_price
from bidplane.exchange import views
from bidplane.exchange.http.asking import ExchangeRequest, find_wallet, read_history
from bidplane.exchange.http.news import News
from bidplane.exchange.http.parameters import NOT_A_TEXT, decoded
from bidplane.exchange.instantsales import InstantSales, NoSale
from bidplane.exchange.workers.history import History
from bidplane.http.replies import Reply, json_reply
from bidplane.ledger import wallets
from bidplane.ledger.ledger import Ledger
from bidplane.ledger.records import wallet_of
from bidplane.wire import status


class OrderRoutes:
    """Answers about prices, orders and leases. `now` is in milliseconds."""

    def __init__(
        self,
        ledger: Ledger,
        news: News,
        desk: InstantSales,
        history: History,
        *,
        now: Callable[[], int],
        suspended: Callable[[str], bool],
    ) -> None:
        self._ledger, self._news, self._desk, self._history = ledger, news, desk, history
        self._now, self._suspended = now, suspended

    async def prices(self, ask: ExchangeRequest) -> Reply:
        return json_reply(views.prices(self._ledger, self._news.lots, self._desk))

    async def price_history(self, ask: ExchangeRequest) -> Reply:
        return Reply(await read_history(self._history, ask.identity, "history", ask.name))

    async def leases(self, ask: ExchangeRequest) -> Reply:
        live = [lease for lease in self._ledger.live_leases() if not lease.is_reservation]
        if not ask.identity.is_owner:
            live = [lease for lease in live if lease.wallet == wallet_of(ask.identity.uid)]
        now = self._now()
        return json_reply(api.Leases(leases=[views.lease_view(lease, now) for lease in live]))

    async def order(self, ask: ExchangeRequest) -> Reply:
        """Buy at once; asking twice with one key buys once."""
        identity = ask.identity
        if identity.is_owner:
            message = "an order is paid from a wallet: use an agent's token"
            raise status.refuse(403, "Forbidden", message)
        try:
            request = decoded(ask.body, api.OrderRequest)
            price = parse_price(request.max_price)
        except ValueError as error:
            raise status.bad_request(str(error)) from error
        if not request.key:
            raise status.bad_request("give a key: asking twice with one buys once")
        if not wallets.is_text(request.key):
            raise status.bad_request(NOT_A_TEXT)
        if self._suspended(identity.uid):
            message = "the agent is suspended: its owner can resume it"
            raise status.refuse(409, "Suspended", message)
        wallet = find_wallet(self._ledger, identity, identity.plane)
        sold = self._desk.buy(
            wallet,
            pool=request.pool,
            max_price=price,
            key=request.key,
            now=self._now(),
            share=request.share,
        )
        if isinstance(sold, NoSale):
            code = 404 if sold.reason == "NoSuchPool" else 409
            raise status.refuse(code, sold.reason, sold.message)
        return json_reply(views.order_view(sold))
