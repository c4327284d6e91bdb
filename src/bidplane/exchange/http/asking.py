"""A request to the exchange, after its sender was authenticated."""

from __future__ import annotations

import msgspec

from bidplane.exchange.http.parameters import Query
from bidplane.exchange.workers.history import History, Unreadable
from bidplane.exchange.workers.historyprocess import Argument
from bidplane.ledger.ledger import Ledger
from bidplane.ledger.records import Account, wallet_of
from bidplane.runtime.identity.credentials import Identity
from bidplane.wire import status


class ExchangeRequest(msgspec.Struct, frozen=True):
    """The sender, the open parts of the path, the query of a GET, the body of a POST."""

    identity: Identity
    arguments: list[str]
    query: Query
    body: bytes

    @property
    def name(self) -> str:
        """The one open part of the path."""
        (argument,) = self.arguments
        return argument


def find_wallet(ledger: Ledger, identity: Identity, name: str) -> Account:
    """The wallet of the agent of that name; the newest, if the name was used again."""
    accounts = ledger.wallets_named(name)
    if not identity.is_owner:
        accounts = [account for account in accounts if account.id == wallet_of(identity.uid)]
    if not accounts:
        raise status.refuse(404, "NotFound", f"there is no wallet of an agent {name!r}")
    return next((a for a in reversed(accounts) if a.is_open), accounts[-1])


async def read_history(
    history: History, identity: Identity, query_name: str, *args: Argument
) -> bytes:
    """Return an answer about the past; raise 503 when it cannot be read now."""
    try:
        return await history.read(identity.uid or identity.user, query_name, *args)
    except Unreadable as error:
        raise status.refuse(503, "ServiceUnavailable", str(error), retry_after=1) from error
