"""`bidplane ledger …`: the books."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import IO, Annotated, Literal

from cyclopts import App, Parameter

from bidplane.cli.common import Data, console, installation
from bidplane.errors import UserError
from bidplane.ledger import export as exports
from bidplane.ledger import verify as verify_ledger
from bidplane.ledger.store import Store
from bidplane.ledger.stores import open_store
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


@app.command
def export(
    *,
    format: Literal["csv", "parquet", "beancount"],
    output: Annotated[
        Path | None, Parameter(help="The file to write; else standard output (not for parquet).")
    ] = None,
    ledger: Where = "",
    data: Data = None,
) -> None:
    """
    Every transfer as two postings that cancel out, for a spreadsheet or a bookkeeper.

    Amounts in csv and parquet are whole micro-credits. Only reads.

    Examples:
        bidplane ledger export --format csv --output postings.csv
        bidplane ledger export --format beancount > bidplane.beancount
    """
    if format == "parquet" and output is None:
        raise UserError("parquet is no text: name a file with --output")
    store = open_store(place(ledger, data), read_only=True)
    try:
        if output is None:
            _write(store, format, sys.stdout)
            return
        fresh = output.with_name(output.name + ".new")  # whole, or not there
        try:
            if format == "parquet":
                exports.write_parquet(store, fresh)
            else:
                with fresh.open("w", encoding="utf-8", newline="") as out:
                    _write(store, format, out)
            fresh.replace(output)
        except OSError as error:
            raise UserError(f"cannot write {output}: {error.strerror}") from error
        finally:
            fresh.unlink(missing_ok=True)
    finally:
        store.close()


def _write(store: Store, format: str, out: IO[str]) -> None:
    (exports.write_csv if format == "csv" else exports.write_beancount)(store, out)
