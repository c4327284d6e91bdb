"""Wallets over HTTP: balance, statement, funding, transfers."""

from __future__ import annotations

from collections.abc import Callable

from bidplane.api.http import exchange as api
from bidplane.api.money import LARGEST_AMOUNT, LARGEST_SUPPLY, format_credits, parse_amount
from bidplane.exchange import views
from bidplane.exchange.http.asking import ExchangeRequest, find_wallet, read_history
from bidplane.exchange.http.parameters import NOT_A_TEXT, decoded, number
from bidplane.exchange.round.grants import HourlyGrant
from bidplane.exchange.workers.history import History
from bidplane.http.replies import Reply, json_reply
from bidplane.ledger import wallets
from bidplane.ledger.ledger import Ledger
from bidplane.ledger.records import Account
from bidplane.ledger.wallets import Funding, Moving
from bidplane.wire import status

LINES_MOST = 1000  # of a statement, unless it asks for more


class WalletRoutes:
    """
    Answers about wallets. `now` is in milliseconds; `grant_of` returns the grant of an agent's uid,
    None if there is no such agent.
    """

    def __init__(
        self,
        ledger: Ledger,
        history: History,
        *,
        now: Callable[[], int],
        grant_of: Callable[[str], HourlyGrant | None],
    ) -> None:
        self._ledger, self._history, self._now, self._grant_of = ledger, history, now, grant_of

    async def wallet(self, ask: ExchangeRequest) -> Reply:
        return self._view(find_wallet(self._ledger, ask.identity, ask.name))

    async def statement(self, ask: ExchangeRequest) -> Reply:
        wallet = find_wallet(self._ledger, ask.identity, ask.name)
        limit = number(ask.query, "limit", LINES_MOST, least=1)
        page = await read_history(
            self._history, ask.identity, "statement_page", wallet.agent_uid, self._now(), limit
        )
        if not page:
            message = f"there is no wallet of an agent {wallet.name!r}"
            raise status.refuse(404, "NotFound", message)
        return Reply(page)

    async def fund(self, ask: ExchangeRequest) -> Reply:
        """Create credits in a wallet; asking twice with one key funds once."""
        if not ask.identity.is_owner:
            raise status.refuse(403, "Forbidden", "only an owner may fund a wallet")
        wallet = find_wallet(self._ledger, ask.identity, ask.name)
        try:
            request = decoded(ask.body, api.FundRequest)
            amount = parse_amount(request.amount)
        except ValueError as error:
            raise status.bad_request(str(error)) from error
        if not request.key:
            raise status.bad_request("give a key: asking twice with one funds once")
        with self._ledger.commit(self._now()) as commit:
            done = wallets.fund(
                commit, uid=wallet.agent_uid, amount=amount, key=request.key, memo=request.memo
            )
        if (refusal := _not_funded(done, request, wallet, amount)) is not None:
            raise refusal
        return self._view(find_wallet(self._ledger, ask.identity, ask.name))

    async def transfer(self, ask: ExchangeRequest) -> Reply:
        """Move credits to another wallet; asking twice with one key moves once."""
        sender = find_wallet(self._ledger, ask.identity, ask.name)
        try:
            request = decoded(ask.body, api.TransferRequest)
            amount = parse_amount(request.amount)
        except ValueError as error:
            raise status.bad_request(str(error)) from error
        if not request.key:
            raise status.bad_request("give a key, of plain text: with one, it moves once")
        if not wallets.is_text(request.key + request.memo):
            raise status.bad_request(NOT_A_TEXT)
        receivers = [wallet for wallet in self._ledger.wallets_named(request.to) if wallet.is_open]
        receiver = receivers[-1].agent_uid if receivers else ""
        grant = self._grant_of(receiver)
        if grant is None:  # no such agent, or one that is going
            receiver = ""
        with self._ledger.commit(self._now()) as commit:
            done = wallets.transfer(
                commit,
                sender=sender.agent_uid,
                receiver=receiver,
                amount=amount,
                cap=grant.cap if grant is not None else 0,
                key=request.key,
                memo=request.memo,
            )
        if done not in (Moving.DONE, Moving.DUPLICATE):
            raise _not_moved(done, request, sender, tells=ask.identity.is_owner)
        return self._view(find_wallet(self._ledger, ask.identity, ask.name))

    def _view(self, wallet: Account) -> Reply:
        now = self._now()
        accruing = sum(
            lease.meter(now).due
            for lease in self._ledger.live_leases()
            if lease.wallet == wallet.id
        )
        return json_reply(views.wallet_view(wallet, accruing, self._grant_of(wallet.agent_uid)))


def _not_funded(
    done: Funding, request: api.FundRequest, wallet: Account, amount: int
) -> status.StatusError | None:
    """The refusal of a funding; None if it was done."""
    name = wallet.name
    match done:
        case Funding.NOT_AN_AMOUNT:
            return status.bad_request("the amount must be more than zero")
        case Funding.NOT_A_TEXT:
            return status.bad_request(NOT_A_TEXT)
        case Funding.WALLET_FULL:
            return status.refuse(
                409,
                done,
                f"{name!r} would have more than {format_credits(LARGEST_AMOUNT)} credits, the"
                f" most in one wallet: it has {format_credits(wallet.posted)}; fund less",
            )
        case Funding.MINT_EXHAUSTED:
            return status.refuse(
                409,
                done,
                "all wallets together would have more than"
                f" {format_credits(LARGEST_SUPPLY)} credits, the most there may be; fund less",
            )
        case Funding.NO_SUCH_WALLET:
            return status.refuse(409, "Conflict", f"the wallet of {name!r} is closed")
        case Funding.KEY_REUSED:
            message = f"key {request.key!r} was used for an amount other than"
            return status.refuse(409, "Conflict", f"{message} {format_credits(amount)}")
    return None


def _not_moved(
    done: Moving, request: api.TransferRequest, sender: Account, *, tells: bool
) -> status.StatusError:
    """
    The refusal of a transfer. `tells`: the caller may know which agents exist, and how much they
    have.
    """
    match done:
        case Moving.NO_RECEIVER | Moving.OVER_CAP if not tells:
            message = (
                f"{request.to!r} cannot be sent {request.amount} now: there is no such agent, or"
                " it would have more than it may carry over. Check the name, send less, or ask"
                " your owner"
            )
            return status.refuse(409, "NotTransferred", message)
        case Moving.NO_RECEIVER:
            message = f"there is no wallet of an agent {request.to!r} to transfer to"
            return status.refuse(404, "NotFound", message)
        case Moving.NOT_AN_AMOUNT:
            return status.refuse(400, done, "the amount must be more than zero")
        case Moving.SAME_WALLET:
            return status.refuse(400, done, f"{request.to!r} is the sender itself")
        case Moving.WALLET_TOO_SMALL:
            free = format_credits(sender.available)
            message = f"{sender.name!r} has {free} free, not {request.amount}"
            return status.refuse(409, done, message)
        case Moving.OVER_CAP:
            message = f"{request.to!r} would have more than it may carry over: send less, or later"
            return status.refuse(409, done, message)
        case Moving.KEY_REUSED:
            message = f"key {request.key!r} was used for another transfer"
            return status.refuse(409, done, message)
        case _:
            return status.refuse(409, done, "one of the two wallets is closed")
