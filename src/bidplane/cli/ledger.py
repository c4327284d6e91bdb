"""`bidplane ledger …`: the books."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from bidplane.cli.common import Data, console, installation
from bidplane.errors import UserError
from bidplane.ledger import verify as verify_ledger
from bidplane.storage.postgres import is_dsn

app = App(name="ledger", help="The ledger: money and leases.")

Where = Annotated[
    str,
    Parameter(
        name="--ledger",
        help="A ledger's file, or postgresql://…; else $BIDPLANE_LEDGER, else the installation's.",
    ),
]


def place(ledger: str, data: Path | None) -> Path | str:
    """Where the ledger is that is meant; a file that is not there is refused."""
    ledger = ledger or os.environ.get("BIDPLANE_LEDGER", "")
    if is_dsn(ledger):
        return ledger
    path = Path(ledger) if ledger else installation(data).ledger
    if not path.exists():
        how = "" if ledger else ": start a Bidplane there with `bidplane up`"
        raise UserError(f"no ledger in {path.parent}{how}")
    return path


@app.command
def verify(*, ledger: Where = "", data: Data = None) -> None:
    """
    Replay the whole chain and check every rule; exit code 1 names the first broken row.

    Only reads: works beside a running exchange, and without one.

    Examples:
        bidplane ledger verify
        bidplane ledger verify --ledger postgresql://db.example/bidplane
    """
    found = verify_ledger(place(ledger, data))
    if not found.is_sound:
        console.print(f"the ledger is broken: {found.problem}", style="bold red", soft_wrap=True)
        sys.exit(1)
    console.print(
        f"the ledger is sound: {found.commits} commits, {found.transfers} transfers,"
        f" {found.accounts} accounts and {found.leases} leases add up;"
        f" head {found.head[:16]}"
    )
