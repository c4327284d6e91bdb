"""
The process in which the ledger's history is read: rounds, explanations, statements.

To read a day of rounds takes seconds of CPU, which the loop that runs rounds does not have. This
process has a connection of its own, which only reads; the exchange asks it for a page at a time.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import msgspec

from bidplane.api.http import exchange as api
from bidplane.exchange import views
from bidplane.exchange.workers.worker import read_question, write_answer
from bidplane.ledger.ledger import Ledger
from bidplane.ledger.reports.statement import statement
from bidplane.storage.postgres import is_dsn

LEDGER = "BIDPLANE_HISTORY_LEDGER"  # where it is: a DSN may hold a password


Argument: TypeAlias = str | int | None  # of a query


class HistoryPage(msgspec.Struct, frozen=True, array_like=True):
    """Some rounds, one JSON object per line, and the number of the last."""

    lines: bytes
    last: int
    count: int


class HistoryQuery(msgspec.Struct, frozen=True, array_like=True):
    query: str
    args: tuple[Argument, ...]


def rounds(ledger: Ledger, after: int, limit: int, agent: str | None, since: int = 0) -> bytes:
    records = ledger.rounds_after(after, limit=limit)
    summaries = [views.round_view(record, agent=agent, since=since) for record in records]
    lines = [msgspec.json.encode(view) + b"\n" for view in summaries]
    last = records[-1].number if records else after
    return msgspec.msgpack.encode(HistoryPage(b"".join(lines), last, len(records)))


def round_record(ledger: Ledger, number: int) -> bytes:
    """Return the record as JSON; b"" if there is none."""
    records = ledger.rounds_after(number - 1, limit=1)
    if not records or records[0].number != number:
        return b""
    return msgspec.json.encode(views.round_record(records[0]))


def explanation(ledger: Ledger, uid: str, agent: str | None, since: int = 0) -> bytes:
    answer = views.explanation(ledger, uid, agent=agent, since=since)
    return b"" if answer is None else msgspec.json.encode(answer)


def statement_page(ledger: Ledger, uid: str, now: int, limit: int) -> bytes:
    """Return the newest `limit` lines, with the balances that all of them make."""
    full = statement(ledger, uid, now=now)
    if full is None:
        return b""
    page = msgspec.structs.replace(full, lines=full.lines[-limit:])
    view: api.StatementView = views.statement_view(page)
    earlier = len(full.lines) - len(page.lines)
    return msgspec.json.encode(msgspec.structs.replace(view, earlier=earlier))


def history(ledger: Ledger, pool: str) -> bytes:
    return msgspec.json.encode(views.history(ledger, pool))


READS: dict[str, Callable[..., bytes]] = {
    read.__name__: read for read in (rounds, round_record, explanation, statement_page, history)
}


def main() -> None:
    location = os.environ[LEDGER]
    ledger = Ledger.open(location if is_dsn(location) else Path(location), read_only=True)
    while (body := read_question(sys.stdin.buffer)) is not None:
        question = msgspec.msgpack.decode(body, type=HistoryQuery)
        write_answer(sys.stdout.buffer, READS[question.query](ledger, *question.args))


if __name__ == "__main__":
    main()
