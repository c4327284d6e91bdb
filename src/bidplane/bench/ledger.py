"""
Rounds of the ledger: many transfers in one commit, as a market round makes them.

Each transfer moves credits between two of 200 wallets. A commit checks that every id is new, nets
the accounts, writes rows and journal, and is synced to disk. The whole chain is verified at the
end. The peer is the same round written in one commit per transfer.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bidplane.bench.report import BenchReport, Result, at_least, more, progress, say
from bidplane.bench.support.postgres import NoPostgres, Server
from bidplane.errors import UserError
from bidplane.ledger import Ledger, verify, wallets
from bidplane.ledger.records import TransferKind, wallet_of
from bidplane.ledger.tables import TRANSFER

WALLETS = 200
SIZES = (1_000, 10_000)
CREDIT = 1_000_000


def run(*, quick: bool, data: Path | None) -> BenchReport:
    rounds = 3 if quick else 10
    singles = 30 if quick else 200
    how = [f"{rounds} rounds of {SIZES[0]:,} and {SIZES[1]:,} transfers, each one synced commit"]
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="bidplane-bench-") as folder, ExitStack() as stack:
        results += _database("SQLite", Path(folder) / "ledger.db", rounds, singles)
        try:
            server = stack.enter_context(Server(durable=True))
        except NoPostgres as error:
            how.append(f"PostgreSQL left out: {error}")
        else:
            results += _database("PostgreSQL", server.dsn("bench"), rounds, singles)
    if quick:
        how.append("quick: 3 rounds of each instead of 10, 30 single commits instead of 200")
    how.append("peer: one commit per transfer, on the same database")
    return BenchReport(name="ledger", how="; ".join(how), results=tuple(results))


def _database(name: str, location: Path | str, rounds: int, singles: int) -> list[Result]:
    """The results for one database."""
    say(f"ledger: {name}")
    results = []
    with _open_funded(location) as ledger:
        single_rate = _rate(ledger, f"{name}, one by one", size=1, rounds=singles)
        for size in SIZES:
            rate = _rate(ledger, f"{name}, rounds of {size}", size=size, rounds=rounds)
            results.append(
                more(
                    f"{name}: rounds of {size:,}",
                    "transfers/s",
                    rate,
                    peer=single_rate,
                    peer_name="one by one",
                    aim=at_least(size),  # such a round each second
                )
            )
    verification = verify(location)
    if not verification.is_sound:
        raise UserError(f"the {name} ledger is broken after the benchmark: {verification.problem}")
    return results


@contextmanager
def _open_funded(location: Path | str) -> Iterator[Ledger]:
    """Open a ledger with funded wallets."""
    ledger = Ledger.open(location)
    try:
        with ledger.commit(0) as commit:
            for number in range(WALLETS):
                uid = str(number)
                wallets.open_wallet(commit, uid=uid, name=f"agent-{uid}", owner="bench")
                wallets.fund(commit, uid=uid, amount=10**6 * CREDIT, key="first")
        yield ledger
    finally:
        ledger.close()


def _rate(ledger: Ledger, label: str, *, size: int, rounds: int) -> float:
    """The transfers per second in rounds of `size`."""
    began = time.perf_counter()
    for _ in progress(label, range(rounds), total=rounds):
        time_ms = ledger.head.at + 1000
        ids = [f"bench/{time_ms}/{number}" for number in range(size)]
        with ledger.commit(time_ms) as commit:
            commit.prefetch(TRANSFER, ids)
            for number, id in enumerate(ids):
                commit.transfer(
                    id,
                    TransferKind.TRANSFER,
                    debit=wallet_of(str(number % WALLETS)),
                    credit=wallet_of(str((number * 7 + 1) % WALLETS)),
                    amount=1 + number % 1000,
                )
    return size * rounds / (time.perf_counter() - began)
