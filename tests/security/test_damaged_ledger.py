"""A ledger whose bits have changed is never called sound, and never ends in a traceback."""

from __future__ import annotations

import random
from pathlib import Path

import apsw
import pytest

from bidplane.errors import UserError
from bidplane.ledger import Ledger, verify, wallets


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("ledger") / "ledger.db"
    ledger = Ledger.open(path)
    for number in range(12):
        with ledger.commit(number) as commit:
            wallets.open_wallet(commit, uid=f"u{number}", name=f"agent-{number}", owner="o")
            wallets.fund(commit, uid=f"u{number}", amount=number + 1, key="first", memo="m" * 50)
    ledger.close()
    return path.read_bytes()


def content(path: Path) -> list[object] | None:
    """Every row there is, read without our code; None if it cannot be read."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        tables = [
            name
            for (name,) in connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
            )
        ]
        return [(name, list(connection.execute(f'SELECT * FROM "{name}"'))) for name in tables]
    except (apsw.Error, UnicodeDecodeError):
        return None
    finally:
        connection.close()


def test_whatever_bit_has_changed(whole: bytes, tmp_path: Path) -> None:
    dice = random.Random(20261116)
    path = tmp_path / "ledger.db"
    path.write_bytes(whole)
    assert verify(path).is_sound
    before = content(path)
    harmless = 0
    written = [at for at, byte in enumerate(whole) if byte]  # most of the rest is never read
    for _ in range(200):
        at, bit = dice.choice(written), dice.randrange(8)
        changed = bytearray(whole)
        changed[at] ^= 1 << bit
        path.write_bytes(changed)
        try:
            report = verify(path)
        except UserError:
            continue  # named: it is no ledger, or one of another version
        if report.is_sound:
            # Only what no reader of the file could see.
            assert content(path) == before, f"bit {bit} of byte {at}"
            harmless += 1
    assert harmless < 100


@pytest.mark.parametrize("size", [1, 100, 4096, 10_000, 50_000])
def test_a_file_that_was_cut(whole: bytes, tmp_path: Path, size: int) -> None:
    path = tmp_path / "ledger.db"
    path.write_bytes(whole[:size])
    try:
        report = verify(path)
    except UserError:
        return
    assert not report.is_sound
    assert report.problem
