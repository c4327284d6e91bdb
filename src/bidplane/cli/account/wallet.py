"""`bidplane wallet …`: balances, statements, funding, transfers."""

from __future__ import annotations

import uuid
from typing import Annotated

import msgspec
from cyclopts import App, Parameter

from bidplane.api.http.exchange import FundRequest, StatementView, TransferRequest, Wallet
from bidplane.api.money import parse_amount
from bidplane.cli.common import Data, Json, ask, console, print_json, print_table
from bidplane.errors import UserError

app = App(name="wallet", help="Wallets: balances, statements, funding, transfers.")


@app.command
def show(agent: str, *, json: Json = False, data: Data = None) -> None:
    """
    Show an agent's balance, and how much of it is held.

    For example:
        bidplane wallet show trainer
        bidplane wallet show trainer --json | jq -r .available
    """
    wallet = ask(data, "GET", f"/exchange/v1/wallets/{agent}", Wallet)
    if json:
        print_json(wallet)
        return
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
def statement(agent: str, *, json: Json = False, data: Data = None) -> None:
    """
    Show every credit that came in or went out, and the balance after it.

    For example:
        bidplane wallet statement trainer
    """
    current = ask(data, "GET", f"/exchange/v1/wallets/{agent}/statement", StatementView)
    if json:
        print_json(current)
        return
    print_table(
        ["at", "kind", "what", "amount", "balance"],
        [[line.at, line.kind, line.text, line.amount, line.balance] for line in current.lines],
        right="amount balance",
    )
    console.print(
        f"balance {current.balance}, of it held {current.held};"
        f" used since the last bill {current.accruing}"
    )


@app.command
def fund(
    agent: str,
    amount: str,
    *,
    key: Annotated[str, Parameter(help="Requests with the same key fund once.")] = "",
    memo: str = "",
    json: Json = False,
    data: Data = None,
) -> None:
    """
    Give an agent credits.

    For example:
        bidplane wallet fund trainer 10.00 --memo "for the demo on Friday"
    """
    _check(amount)
    request = FundRequest(amount=amount, key=key or uuid.uuid4().hex, memo=memo)
    wallet = ask(
        data,
        "POST",
        f"/exchange/v1/wallets/{agent}/fund",
        Wallet,
        body=msgspec.json.encode(request),
    )
    if json:
        print_json(wallet)
        return
    console.print(f"{wallet.agent} has {wallet.available} credits to spend")


@app.command
def transfer(
    sender: Annotated[str, Parameter(help="The agent that pays.")],
    receiver: Annotated[str, Parameter(help="The agent that is paid.")],
    amount: str,
    /,
    *,
    key: Annotated[str, Parameter(help="Requests with the same key transfer once.")] = "",
    memo: str = "",
    json: Json = False,
    data: Data = None,
) -> None:
    """
    Move credits from one agent's wallet to another's.

    Credits that are held cannot be moved, nor more than the receiver may carry over.

    For example:
        bidplane wallet transfer trainer research 2.50 --memo "for your slot at noon"
    """
    _check(amount)
    request = TransferRequest(to=receiver, amount=amount, key=key or uuid.uuid4().hex, memo=memo)
    path = f"/exchange/v1/wallets/{sender}/transfer"
    wallet = ask(data, "POST", path, Wallet, body=msgspec.json.encode(request))
    if json:
        print_json(wallet)
        return
    console.print(f"{wallet.agent} has {wallet.available} credits left to spend")


def _check(amount: str) -> None:
    try:
        parse_amount(amount)
    except ValueError as error:
        raise UserError(str(error)) from error
