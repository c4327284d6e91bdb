"""`bidplane market …`: prices and rounds."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import App, Parameter

from bidplane.api import labels
from bidplane.api.exchange import Prices, Round
from bidplane.api.kinds import BID
from bidplane.cli.common import Data, ask, console, http, print_table, refusal, with_host
from bidplane.cli.ledger import Where, place
from bidplane.errors import ApiError, UserError
from bidplane.kube.client import Client, Object
from bidplane.ledger import Ledger
from bidplane.ledger.rounds import explain_bid, find_round
from bidplane.ledger.rounds import replay as replay_round

app = App(name="market", help="Prices and rounds.")

_COLOURS = {"Won": "green", "Lost": "yellow", "Displaced": "red", "Moved": "cyan"}


@app.command
def prices(
    *,
    classes: Annotated[bool, Parameter(help="By block size and part of a GPU, too.")] = False,
    data: Data = None,
) -> None:
    """
    What a GPU costs now, in each pool.

    Examples:
        bidplane market prices
        bidplane market prices --classes
    """
    found = ask(data, "GET", "/exchange/v1/prices", Prices)
    if classes:
        # Prices are per GPU-hour whatever the class, so that they can be compared.
        print_table(
            ["pool", "class", "price", "stay"],
            [[p.pool, name, p.classes[name], p.stay] for p in found.pools for name in p.classes],
            right="price stay",
        )
        return
    print_table(
        ["pool", "price", "base", "leased", "devices"],
        [[p.pool, p.price, p.base, str(p.leased), str(p.devices)] for p in found.pools],
        right="price base leased devices",
    )
    for pool in found.pools:
        if pool.withheld:
            words = f"not for sale now in {pool.pool}: {pool.withheld}"
            console.print(words, markup=False, highlight=False, soft_wrap=True)


@app.command
def watch(
    *,
    last: Annotated[int, Parameter(help="How many past rounds to show first.")] = 5,
    follow: bool = True,
    data: Data = None,
) -> None:
    """
    Rounds as they happen: who won, who lost and what would have won, who was displaced.

    Examples:
        bidplane market watch
        bidplane market watch --last 20 --no-follow
    """
    prices(data=data)
    params = {"after": str(-last), "follow": "true" if follow else "false"}
    with (
        http(data) as client,
        client.stream("GET", "/exchange/v1/rounds", params=params, timeout=None) as response,
    ):
        if response.status_code >= 400:
            response.read()
            raise refusal(response)
        for line in response.iter_lines():
            if line:
                _show(msgspec.json.decode(line, type=Round))


@app.command
def replay(number: int, /, *, ledger: Where = "", data: Data = None) -> None:
    """
    Clear a recorded round again from its saved input; exit code 1 if it comes out otherwise.

    Reads the ledger only. A Bidplane of another version may clear otherwise.

    Examples:
        bidplane market replay 17
    """
    books = Ledger.open(place(ledger, data), read_only=True)
    try:
        found = replay_round(find_round(books, number))
    finally:
        books.close()
    result = found.result
    what = (
        f"{len(found.input.asks)} bids and {len(found.input.incumbents)} leases:"
        f" {len(result.won)} won, {len(result.lost)} lost,"
        f" {len(result.kept)} stayed, {len(result.displaced)} were displaced,"
        f" {len(result.moved)} moved"
    )
    if not found.is_same:
        parts = ", ".join(found.differences)
        console.print(f"round {number} comes out otherwise now: {parts} ({what})", style="bold red")
        sys.exit(1)
    exactly = ", to the byte" if found.to_the_byte else ""
    console.print(f"round {number}: the same result again{exactly}; {what}")


@app.command
def explain(bid: str, /, *, ledger: Where = "", data: Data = None) -> None:
    """
    Why a bid won or lost, what would have won, and what it would have cost.

    BID is its uid; while Bidplane runs also its name, or its pod's, as its agent knows it
    (AGENT/NAME if several agents use it).

    Examples:
        bidplane market explain trainer/train-1
    """
    books = Ledger.open(place(ledger, data), read_only=True)
    try:
        verdict = explain_bid(books, bid)
        if verdict is None and not ledger:
            verdict = explain_bid(books, _uid_of(bid, data))
    finally:
        books.close()
    if verdict is None:
        raise UserError(f"no recorded round knows a bid {bid!r}: name it by its uid")
    when = f"round {verdict.round}" if verdict.round else "between rounds"
    console.print(f"{bid}, {when}: {verdict.sentence}", soft_wrap=True, markup=False)


def _uid_of(name: str, data: Path | None) -> str:
    async def bids(host: Client) -> Sequence[Object]:
        return (await host.list(BID)).items

    try:
        found = {obj["metadata"]["uid"] for obj in with_host(data, bids) if name in _names(obj)}
    except (ApiError, UserError):
        return name  # it does not run: only what the ledger knows can be told
    if len(found) > 1:
        raise UserError(f"several agents have a bid {name!r}: say AGENT/{name}")
    return found.pop() if found else name


def _names(bid: Object) -> set[str]:
    """What it is called: here and in its agent's plane, and what its pod is called there."""
    metadata = bid["metadata"]
    marks = {**(metadata.get("annotations") or {}), **(metadata.get("labels") or {})}
    known = (labels.PLANE_NAME, labels.PLANE_UID, labels.POD_NAME)
    names = {metadata["name"], *(marks[mark] for mark in known if mark in marks)}
    return names | {f"{marks.get(labels.AGENT, '')}/{name}" for name in names}


def _show(found: Round) -> None:
    pools = ", ".join(
        f"{pool.pool} {pool.price} ({pool.leased}/{pool.devices})" for pool in found.pools
    )
    console.print(f"[bold]round {found.number}[/bold]  {found.at}  {pools}", soft_wrap=True)
    for outcome in found.outcomes:
        line = f"  {outcome.event:<9} {outcome.agent:<12} {outcome.message}"
        console.print(line, style=_COLOURS.get(outcome.event, ""), soft_wrap=True, markup=False)
