"""
The highest commit that the ledger is known to have had, kept in a file beside it.

A database that lost its write-ahead log, or was replaced by an older or an empty one, opens
without a complaint and has forgotten commits: money that was paid and leases that run. The mark
is written after each commit, so it is never ahead of a ledger that kept what it committed. One
that is behind its mark, or has another commit at it, is refused.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from bidplane.errors import UserError
from bidplane.ledger.records import Entry

FILE = "ledger.mark"  # in the installation's folder
_SIZE = 256  # bytes, written at once: a reader sees the old one or the new one


class Mark(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    sequence: int
    hash: str
    # The operator goes on with what is there: objects of later commits are overwritten.
    accepts_loss: bool = False


class LedgerLost(UserError):
    """The ledger has less than it is known to have had."""


class Watermark:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self.mark = read_mark(path)

    def write(self, entry: Entry) -> None:
        """
        Write the mark. It is not synced: after a power cut it may be older, and never newer than
        the ledger.
        """
        accepts = self.mark is not None and self.mark.accepts_loss
        self._put(Mark(sequence=entry.sequence, hash=entry.hash.hex(), accepts_loss=accepts))

    def accept_loss(self, entry: Entry, *, accepts: bool) -> None:
        self._put(Mark(sequence=entry.sequence, hash=entry.hash.hex(), accepts_loss=accepts))

    def check(self, location: object, head: Entry, at_mark: Entry | None) -> None:
        """Raise `LedgerLost` unless the ledger has the marked commit. `at_mark`: what it has."""
        mark = self.mark
        if mark is None or mark.sequence == 0:
            return
        if head.sequence < mark.sequence:
            raise LedgerLost(lost_message(location, head.sequence, mark.sequence))
        if at_mark is None or at_mark.hash.hex() != mark.hash:
            raise LedgerLost(
                f"{location} is not the ledger that was used here: its commit {mark.sequence} is"
                f" another. {_REMEDY}"
            )

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _put(self, mark: Mark) -> None:
        self.mark = mark
        if self._file is None:
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.pwrite(self._file, msgspec.json.encode(mark).ljust(_SIZE - 1) + b"\n", 0)


def read_mark(path: Path) -> Mark | None:
    """Return the mark; None if there is none. Raises `LedgerLost` if it cannot be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Mark)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise LedgerLost(f"{path}, the ledger's mark, cannot be read: {error}. {_REMEDY}") from None


def check_file(ledger: Path, mark: Path) -> None:
    """Raise `LedgerLost` if there was a ledger, and its file is gone or empty."""
    recorded = read_mark(mark)
    if recorded is None or recorded.sequence == 0:
        return
    if not ledger.exists() or not ledger.stat().st_size:
        state = "empty" if ledger.exists() else "gone"
        raise LedgerLost(f"{ledger} is {state}, and had {recorded.sequence} commits. {_REMEDY}")


def lost_message(location: object, head: int, mark: int) -> str:
    return (
        f"{location} ends at commit {head}, and had {mark}: {mark - head} commits are lost, with"
        f" the transfers, bills and leases in them. {_REMEDY}"
    )


_REMEDY = (
    "Restore ledger.db together with its ledger.db-wal, then start again; or, to go on with what"
    " is there, run `bidplane ledger accept-loss`"
)
