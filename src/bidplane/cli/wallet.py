"""`bidplane wallet …`: who has what, and where it went."""

from __future__ import annotations

import uuid
from typing import Annotated

import msgspec
from cyclopts import App, Parameter

from bidplane.api.exchange import FundRequest, Statement, TransferRequest, Wallet
from bidplane.api.money import parse_credits
from bidplane.cli.common import Data, ask, console, print_table
from bidplane.errors import UserError

app = App(name="wallet", help="Wallets: balances, statements, funding, transfers.")


@app.command
def show(agent: str, *, data: Data = None) -> None:
    """What an agent has, and how much of it is promised already."""
    wallet = ask(data, "GET", f"/exchange/v1/wallets/{agent}", Wallet)
    print_table(
        ["agent", "balance", "held", "available", "accruing", "state"],
        [
            [
                wallet.agent,
                wallet.balance,
                wallet.held,
                wallet.available,
                wallet.accruing,
                wallet.state,
            ]
        ],
        right="balance held available accruing",
    )


@app.command
def statement(agent: str, *, data: Data = None) -> None:
    """Every credit that came or went, and the balance after it."""
    found = ask(data, "GET", f"/exchange/v1/wallets/{agent}/statement", Statement)
    print_table(
        ["at", "kind", "what", "amount", "balance"],
        [[line.at, line.kind, line.text, line.amount, line.balance] for line in found.lines],
        right="amount balance",
    )
    console.print(
        f"balance {found.balance}, of it held {found.held};"
        f" used since the last bill {found.accruing}"
    )


@app.command
def fund(
    agent: str,
    amount: str,
    *,
    key: Annotated[str, Parameter(help="Asking twice with one key funds once.")] = "",
    memo: str = "",
    data: Data = None,
) -> None:
    """
    Give an agent credits.

    Examples:
        bidplane wallet fund trainer 10.00 --memo "for the demo on Friday"
    """
    _check(amount)
    request = FundRequest(amount=amount, key=key or uuid.uuid4().hex, memo=memo)
    wallet = ask(
        data,
        "POST",
        f"/exchange/v1/wallets/{agent}/fund",
        Wallet,
        json={"amount": request.amount, "key": request.key, "memo": request.memo},
    )
    console.print(f"{wallet.agent} has {wallet.available} credits to spend")


@app.command
def transfer(
    sender: Annotated[str, Parameter(help="The agent that pays.")],
    receiver: Annotated[str, Parameter(help="The agent that is paid.")],
    amount: str,
    /,
    *,
    key: Annotated[str, Parameter(help="Asking twice with one key moves once.")] = "",
    memo: str = "",
    data: Data = None,
) -> None:
    """
    Move credits from one agent's wallet to another's.

    Only what nothing holds can be moved, and never more than the receiver may carry over.

    Examples:
        bidplane wallet transfer trainer research 2.50 --memo "for your slot at noon"
    """
    _check(amount)
    request = TransferRequest(to=receiver, amount=amount, key=key or uuid.uuid4().hex, memo=memo)
    path = f"/exchange/v1/wallets/{sender}/transfer"
    wallet = ask(data, "POST", path, Wallet, content=msgspec.json.encode(request))
    console.print(f"{wallet.agent} has {wallet.available} credits left to spend")


def _check(amount: str) -> None:
    try:
        parse_credits(amount)
    except ValueError as error:
        raise UserError(str(error)) from error
