"""`bidplane market …`: prices and rounds."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import App, Parameter

from bidplane.api import labels
from bidplane.api.http.exchange import Prices, RoundSummary
from bidplane.api.kinds import BID
from bidplane.api.objects import annotations_of, labels_of, name_of, uid_of
from bidplane.cli.account.ledger import LedgerOption, ledger_location
from bidplane.cli.common import (
    Data,
    Json,
    ask,
    console,
    http,
    print_json,
    print_table,
    with_host,
)
from bidplane.core.market.model import RULES
from bidplane.errors import ApiError, UserError
from bidplane.kube.client import KubeClient, Object
from bidplane.ledger import Ledger
from bidplane.ledger.rounds import explain_bid, find_round
from bidplane.ledger.rounds import replay as replay_round

app = App(name="market", help="Prices and rounds.")

_COLOURS = {"Won": "green", "Lost": "yellow", "Displaced": "red", "Moved": "cyan"}


@app.command
def prices(
    *,
    classes: Annotated[bool, Parameter(help="By block size and part of a GPU, too.")] = False,
    json: Json = False,
    data: Data = None,
) -> None:
    """
    Show the price of a GPU now, in each pool. A bid that names no price offers its agent's
    priority times the list price.

    For example:
        bidplane market prices
        bidplane market prices --classes
    """
    current = ask(data, "GET", "/exchange/v1/prices", Prices)
    if json:
        print_json(current)
        return
    if classes:
        # Prices are per GPU-hour whatever the class, so that they can be compared.
        print_table(
            ["pool", "class", "price", "stay"],
            [[p.pool, name, p.classes[name], p.stay] for p in current.pools for name in p.classes],
            right="price stay",
        )
        return
    print_table(
        ["pool", "price", "base", "list", "leased", "devices"],
        [
            [p.pool, p.price, p.base, p.list_price, str(p.leased), str(p.devices)]
            for p in current.pools
        ],
        right="price base list leased devices",
    )
    for pool in current.pools:
        if pool.withheld:
            note = f"not for sale now in {pool.pool}: {pool.withheld}"
            console.print(note, markup=False, highlight=False, soft_wrap=True)


@app.command
def watch(
    *,
    last: Annotated[int, Parameter(help="How many past rounds to show first.")] = 5,
    follow: bool = True,
    json: Annotated[
        bool, Parameter(name="--json", negative="", help="One JSON object per round and line.")
    ] = False,
    data: Data = None,
) -> None:
    """
    Show rounds as they happen: who won, who lost and what would have won, who was displaced.

    For example:
        bidplane market watch
        bidplane market watch --last 20 --no-follow
    """
    if not json:
        prices(data=data)
    params = {"after": str(-last), "follow": "true" if follow else "false"}
    with http(data) as client:
        for line in client.lines("GET", "/exchange/v1/rounds", params=params):
            if line and json:
                print(line, flush=True)
            elif line:
                _show(msgspec.json.decode(line, type=RoundSummary))


@app.command
def replay(
    number: int, /, *, ledger: LedgerOption = "", json: Json = False, data: Data = None
) -> None:
    """
    Clear a recorded round again from its saved input; exit code 1 if the result differs.

    Reads the ledger only. A round that an earlier version cleared by other rules may give another
    result; this is then noted, and the exit code is 0.

    For example:
        bidplane market replay 17
    """
    books = Ledger.open(ledger_location(ledger, data), read_only=True)
    try:
        replayed = replay_round(find_round(books, number))
    finally:
        books.close()
    result = replayed.result
    if json:
        differences = list(replayed.differences)
        rules = replayed.input.rules
        answer = {"round": number, "same": replayed.is_same, "differences": differences}
        print_json({**answer, "rules": rules})
        sys.exit(0 if replayed.is_same or replayed.is_of_earlier_rules else 1)
    summary = (
        f"{len(replayed.input.asks)} bids and {len(replayed.input.incumbents)} leases:"
        f" {len(result.won)} won, {len(result.lost)} lost,"
        f" {len(result.kept)} stayed, {len(result.displaced)} were displaced,"
        f" {len(result.moved)} moved"
    )
    if replayed.is_of_earlier_rules and not replayed.is_same:
        console.print(
            f"round {number} was cleared by version {replayed.input.rules} of the rules, and what"
            f" it decided stands; by version {RULES} the result would differ:"
            f" {', '.join(replayed.differences)} ({summary})"
        )
        return
    if not replayed.is_same:
        parts = ", ".join(replayed.differences)
        console.print(
            f"round {number} now has another result: {parts} ({summary})", style="bold red"
        )
        sys.exit(1)
    exactly = ", to the byte" if replayed.to_the_byte else ""
    console.print(f"round {number}: the same result again{exactly}; {summary}")


@app.command
def explain(
    bid: str, /, *, ledger: LedgerOption = "", json: Json = False, data: Data = None
) -> None:
    """
    Explain why a bid won or lost, what would have won, and what it would have cost.

    BID is its uid; while Bidplane runs also its name, or its pod's, in its agent's plane
    (AGENT/NAME if several agents use it).

    For example:
        bidplane market explain trainer/train-1
    """
    books = Ledger.open(ledger_location(ledger, data), read_only=True)
    try:
        verdict = explain_bid(books, bid)
        if verdict is None and not ledger:
            verdict = explain_bid(books, _uid_of(bid, data))
    finally:
        books.close()
    if verdict is None:
        raise UserError(
            f"there is no bid or pod {bid!r} now, and no recorded round has a bid with that uid:"
            " a bid that is gone is explained by its uid alone"
        )
    if json:
        print_json({"bid": bid, **verdict._asdict()})
        return
    when = f"round {verdict.round}" if verdict.round else "between rounds"
    console.print(f"{bid}, {when}: {verdict.sentence}", soft_wrap=True, markup=False)


def _uid_of(name: str, data: Path | None) -> str:
    """The uid of the bid of that name; the name itself if no running bid has it."""

    async def bids(host: KubeClient) -> Sequence[Object]:
        return (await host.list(BID)).items

    try:
        uids = {uid_of(obj) for obj in with_host(data, bids) if name in _names(obj)}
    except (ApiError, UserError):
        return name  # Bidplane does not run: only the ledger can be read
    if len(uids) > 1:
        raise UserError(f"several agents have a bid {name!r}: write AGENT/{name}")
    return uids.pop() if uids else name


def _names(bid: Object) -> set[str]:
    """All names that select the bid: its own, its original's in the plane, and its pod's."""
    marks = {**annotations_of(bid), **labels_of(bid)}
    keys = (labels.PLANE_NAME, labels.PLANE_UID, labels.POD_NAME)
    names = {name_of(bid), *(marks[key] for key in keys if key in marks)}
    return names | {f"{marks.get(labels.AGENT, '')}/{name}" for name in names}


def _show(round_: RoundSummary) -> None:
    pools = ", ".join(
        f"{pool.pool} {pool.price} ({pool.leased}/{pool.devices})" for pool in round_.pools
    )
    console.print(f"[bold]round {round_.number}[/bold]  {round_.at}  {pools}", soft_wrap=True)
    for outcome in round_.outcomes:
        line = f"  {outcome.event:<9} {outcome.agent:<12} {outcome.message}"
        console.print(line, style=_COLOURS.get(outcome.event, ""), soft_wrap=True, markup=False)
