"""
The books, for other programs: every transfer as two postings that cancel out.

They are read from the journal, in the order they happened, as of one moment. Amounts are
signed: what an account's postings add up to is its balance.
"""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import IO, NamedTuple

import msgspec

from bidplane.errors import UserError
from bidplane.ledger.records import Account, AccountKind
from bidplane.ledger.store import LedgerStore
from bidplane.ledger.tables import ACCOUNT, JOURNAL, TRANSFER

_BATCH = 65_536
_MICRO = 1_000_000


class Posting(NamedTuple):
    sequence: int  # the commit
    at: int  # milliseconds
    transfer: str
    kind: str
    account: str
    amount: int  # micro-credits; negative: it left the account
    lease: str
    memo: str


def postings(store: LedgerStore) -> Iterator[Posting]:
    for _, _, payload, _ in store.rows(JOURNAL):
        for table, row in msgspec.json.decode(payload):
            if table == TRANSFER.name:
                yield from _pair(dict(zip(TRANSFER.columns, row, strict=True)))


def _pair(transfer: dict[str, int | str]) -> Iterator[Posting]:
    amount = int(transfer["amount"])
    for account, signed in ((transfer["debit"], -amount), (transfer["credit"], amount)):
        yield Posting(
            sequence=int(transfer["sequence"]),
            at=int(transfer["at"]),
            transfer=str(transfer["id"]),
            kind=str(transfer["kind"]),
            account=str(account),
            amount=signed,
            lease=str(transfer["lease"]),
            memo=str(transfer["memo"]),
        )


def write_csv(store: LedgerStore, out: IO[str]) -> None:
    """
    One posting per line. Agents write memos and keys, and owners open such files in
    spreadsheets: a text that would start a formula there gets an apostrophe before it.
    """
    with store.reading():
        writer = csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
        writer.writerow(Posting._fields)
        for posting in postings(store):
            writer.writerow([_harmless(v) if isinstance(v, str) else v for v in posting])


def _harmless(text: str) -> str:
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def write_parquet(store: LedgerStore, path: Path) -> None:
    try:
        import pyarrow as pa  # type: ignore[import-untyped, import-not-found, unused-ignore]
        from pyarrow import parquet
    except ImportError:
        raise UserError(
            "Parquet needs pyarrow: install it with `pip install 'bidplane[parquet]'`,"
            " or export as csv"
        ) from None
    texts = {name: pa.string() for name in ("transfer", "kind", "account", "lease", "memo")}
    numbers = {"sequence": pa.int64(), "at": pa.timestamp("ms", tz="UTC"), "amount": pa.int64()}
    schema = pa.schema([(name, (texts | numbers)[name]) for name in Posting._fields])
    with store.reading(), parquet.ParquetWriter(path, schema) as writer:
        for batch in _batches(postings(store)):
            columns = list(zip(*batch, strict=True))
            arrays = [pa.array(c, type=f.type) for c, f in zip(columns, schema, strict=True)]
            writer.write_batch(pa.record_batch(arrays, schema=schema))


def _batches(rows: Iterable[Posting]) -> Iterator[list[Posting]]:
    rows = iter(rows)
    while batch := list(islice(rows, _BATCH)):
        yield batch


def write_beancount(store: LedgerStore, out: IO[str]) -> None:
    """A plain-text journal; at its end it asserts the balance of every account."""
    with store.reading():
        accounts = sorted(store.find(ACCOUNT), key=lambda a: (a.opened_at, a.sequence, a.id))
        names = {account.id: beancount_name(account) for account in accounts}
        out.write('option "title" "Bidplane"\noption "operating_currency" "CREDIT"\n\n')
        for account in accounts:
            out.write(f"{_day(account.opened_at)} open {names[account.id]} CREDIT\n")
        last = 0
        rows = postings(store)
        for debit, credit in zip(rows, rows, strict=True):
            last = max(last, debit.at)
            payee = f"{debit.kind} {debit.lease}".strip()
            out.write(f'\n{_day(debit.at)} * "{payee}" "{_quoted(debit.memo or debit.transfer)}"\n')
            for posting in (debit, credit):
                out.write(f"  {names[posting.account]}  {_credits(posting.amount)} CREDIT\n")
        # An assertion holds at the start of its day.
        out.write("\n")
        for account in accounts:
            balance = f"{names[account.id]}  {_credits(account.posted)} CREDIT"
            out.write(f"{_day(last) + timedelta(days=1)} balance {balance}\n")


def beancount_name(account: Account) -> str:
    """One name for each account: letters, digits and dashes, whatever its id is."""
    match account.kind:
        case AccountKind.MINT:
            return "Equity:Mint"
        case AccountKind.REVENUE:
            return "Assets:Revenue"
        case kind:
            plain = account.id.partition("/")[2]
            safe = re.sub(r"[^A-Za-z0-9-]", "-", plain)
            if safe != plain:  # two ids must not become one
                safe += "-" + hashlib.sha256(plain.encode()).hexdigest()[:8]
            # A component starts with a capital or a digit. "X" keeps "a" and "A" apart.
            return f"Assets:{kind.value.title()}:X-{safe}"


def _day(milliseconds: int) -> date:
    return datetime.fromtimestamp(milliseconds / 1000, tz=UTC).date()


def _credits(amount: int) -> str:
    """The amount in credits, exactly: six digits, never a float."""
    integer, part = divmod(abs(amount), _MICRO)
    return f"{'-' if amount < 0 else ''}{integer}.{part:06d}"


def _quoted(text: str) -> str:
    return " ".join(text.split()).replace("\\", "\\\\").replace('"', '\\"')
