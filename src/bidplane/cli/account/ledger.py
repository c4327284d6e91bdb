"""`bidplane ledger …`: verify and export the ledger."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import IO, Annotated, Literal

import msgspec
from cyclopts import App, Parameter

from bidplane.cli.common import Data, Json, console, installation, print_json
from bidplane.errors import UserError
from bidplane.ledger import Ledger
from bidplane.ledger import verify as verify_ledger
from bidplane.ledger.reports import export as exports
from bidplane.ledger.store import LedgerStore
from bidplane.ledger.stores import open_store
from bidplane.ledger.watermark import FILE, LedgerLost, read_mark
from bidplane.storage.postgres import is_dsn

app = App(name="ledger", help="The ledger: money and leases.")

LedgerOption = Annotated[
    str,
    Parameter(
        name="--ledger",
        help="A ledger's file, or postgresql://…; else $BIDPLANE_LEDGER, else the installation's.",
    ),
]


def ledger_location(ledger: str, data: Path | None) -> Path | str:
    """The ledger to use; raises `UserError` for a file that does not exist."""
    ledger = ledger or os.environ.get("BIDPLANE_LEDGER", "")
    if is_dsn(ledger):
        return ledger
    path = Path(ledger) if ledger else installation(data).ledger
    if not path.exists():
        how = "" if ledger else ": start a Bidplane there with `bidplane up`"
        raise UserError(f"no ledger in {path.parent}{how}")
    return path


@app.command
def verify(*, ledger: LedgerOption = "", json: Json = False, data: Data = None) -> None:
    """
    Replay the whole chain and check every rule; exit code 1 if a row is broken, with its name.

    Only reads: works with and without a running exchange.

    For example:
        bidplane ledger verify
        bidplane ledger verify --ledger postgresql://db.example/bidplane
    """
    verification = verify_ledger(ledger_location(ledger, data))
    if json:
        print_json({"sound": verification.is_sound, **msgspec.to_builtins(verification)})
        sys.exit(0 if verification.is_sound else 1)
    if not verification.is_sound:
        console.print(
            f"the ledger is broken: {verification.problem}", style="bold red", soft_wrap=True
        )
        sys.exit(1)
    console.print(
        f"the ledger is sound: {verification.commits} commits, {verification.transfers} transfers,"
        f" {verification.accounts} accounts and {verification.leases} leases add up;"
        f" head {verification.head[:16]}"
    )


@app.command(name="accept-loss")
def accept_loss(*, ledger: LedgerOption = "", data: Data = None) -> None:
    """
    Continue with a ledger that has lost commits. This cannot be undone: restore it if you can.

    Bidplane does not start on a ledger that has lost commits. After this command it starts. The
    transfers and bills of the lost commits are void, and leases that only these commits know are
    ended.

    For example:
        bidplane ledger accept-loss
    """
    where = installation(data)
    chosen = ledger or os.environ.get("BIDPLANE_LEDGER", "")
    store_at = chosen if is_dsn(chosen) else Path(chosen) if chosen else where.ledger
    watermark = where.folder / FILE
    try:
        mark = read_mark(watermark)
        had = mark.sequence if mark else 0
    except LedgerLost:
        had = 0  # the mark cannot be read; this makes it anew
    watermark.unlink(missing_ok=True)
    opened = Ledger.open(store_at, mark=watermark)
    try:
        opened.accept_loss()
        has = opened.head.sequence
    finally:
        opened.close()
    lost = f"{had - has} commits are given up" if had > has else "no later commit was marked"
    console.print(f"the ledger goes on after commit {has}: {lost}", soft_wrap=True)


@app.command
def export(
    *,
    format: Literal["csv", "parquet", "beancount"],
    output: Annotated[
        Path | None, Parameter(help="The file to write; else standard output (not for parquet).")
    ] = None,
    ledger: LedgerOption = "",
    data: Data = None,
) -> None:
    """
    Export every transfer as two postings that cancel out, for a spreadsheet or an accountant.

    Amounts in csv and parquet are whole micro-credits. Only reads.

    For example:
        bidplane ledger export --format csv --output postings.csv
        bidplane ledger export --format beancount > bidplane.beancount
    """
    if format == "parquet" and output is None:
        raise UserError("parquet is a binary format: name a file with --output")
    store = open_store(ledger_location(ledger, data), read_only=True)
    try:
        if output is None:
            _write(store, format, sys.stdout)
            return
        new_file = output.with_name(output.name + ".new")  # renamed when complete
        try:
            if format == "parquet":
                exports.write_parquet(store, new_file)
            else:
                with new_file.open("w", encoding="utf-8", newline="") as out:
                    _write(store, format, out)
            new_file.replace(output)
        except OSError as error:
            raise UserError(f"cannot write {output}: {error.strerror}") from error
        finally:
            new_file.unlink(missing_ok=True)
    finally:
        store.close()


def _write(store: LedgerStore, format: str, out: IO[str]) -> None:
    (exports.write_csv if format == "csv" else exports.write_beancount)(store, out)
