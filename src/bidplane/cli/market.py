"""`bidplane market …`: prices and rounds."""

from __future__ import annotations

from typing import Annotated

import msgspec
from cyclopts import App, Parameter

from bidplane.api.exchange import Prices, Round
from bidplane.cli.common import Data, ask, console, http, print_table, refusal

app = App(name="market", help="Prices and rounds.")

_COLOURS = {"Won": "green", "Lost": "yellow", "Displaced": "red"}


@app.command
def prices(*, data: Data = None) -> None:
    """What a GPU costs now, in each pool."""
    found = ask(data, "GET", "/exchange/v1/prices", Prices)
    print_table(
        ["pool", "price", "base", "leased", "devices"],
        [[p.pool, p.price, p.base, str(p.leased), str(p.devices)] for p in found.pools],
        right="price base leased devices",
    )


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


def _show(found: Round) -> None:
    pools = ", ".join(
        f"{pool.pool} {pool.price} ({pool.leased}/{pool.devices})" for pool in found.pools
    )
    console.print(f"[bold]round {found.number}[/bold]  {found.at}  {pools}", soft_wrap=True)
    for outcome in found.outcomes:
        line = f"  {outcome.event:<9} {outcome.agent:<12} {outcome.message}"
        console.print(line, style=_COLOURS.get(outcome.event, ""), soft_wrap=True, markup=False)
