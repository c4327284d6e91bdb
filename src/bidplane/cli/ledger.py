"""`bidplane ledger …`: the books."""

from __future__ import annotations

import sys

from cyclopts import App

from bidplane.cli.common import Data, console, installation
from bidplane.errors import UserError
from bidplane.ledger import verify as verify_ledger

app = App(name="ledger", help="The ledger: money and leases.")


@app.command
def verify(*, data: Data = None) -> None:
    """
    Replay the whole chain and check every rule; exit code 1 names the first broken row.

    Reads the file only: works beside a running exchange, and without one.
    """
    path = installation(data).ledger
    if not path.exists():
        raise UserError(f"no ledger in {path.parent}: start a Bidplane there with `bidplane up`")
    found = verify_ledger(path)
    if not found.is_sound:
        console.print(f"the ledger is broken: {found.problem}", style="bold red", soft_wrap=True)
        sys.exit(1)
    console.print(
        f"the ledger is sound: {found.commits} commits, {found.transfers} transfers,"
        f" {found.accounts} accounts and {found.leases} leases add up;"
        f" head {found.head[:16]}"
    )
