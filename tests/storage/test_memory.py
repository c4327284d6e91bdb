"""What a connection holds: a thousand planes have one each."""

import subprocess
import sys

_OPENED = """
import apsw
from bidplane.storage import sqlite
{before}
first = apsw.Connection(":memory:")
first.execute("CREATE TABLE t (a)")
held = apsw.memory_used()
second = apsw.Connection(":memory:")
second.execute("CREATE TABLE t (a)")
second.execute("INSERT INTO t VALUES (1)")
assert list(second.execute("SELECT a FROM t")) == [(1,)]
print(apsw.memory_used() - held)
"""


def _bytes_of_a_connection(before: str) -> int:
    script = _OPENED.format(before=before)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def test_a_connection_takes_what_it_needs_and_no_more() -> None:
    usual, little = (
        _bytes_of_a_connection(""),
        _bytes_of_a_connection("sqlite.limit_connection_memory()"),
    )
    assert little < usual - 40_000
