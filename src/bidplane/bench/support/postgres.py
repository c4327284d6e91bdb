"""
A temporary PostgreSQL server, for tests and benchmarks.

It listens on a socket in its own temporary folder, never on the network. PostgreSQL refuses to run
as root: there it runs as an unprivileged user.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

from bidplane.errors import UserError

_START_SECONDS = 30.0
_USERS = ("postgres", "nobody")


class NoPostgres(UserError):
    """Raised when there are no binaries, or they do not start; the message says which."""


def binaries() -> Path:
    """The folder with initdb and postgres: on PATH, else where Debian installs them."""
    on_path = shutil.which("initdb")
    places = [Path(on_path).resolve().parent] if on_path else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for place in places:
        if (place / "initdb").exists() and (place / "postgres").exists():
            return place
    raise NoPostgres("no PostgreSQL here: initdb and postgres are not installed")


class Server:
    """
    A server for the length of a `with`: `with Server() as server: … server.dsn("some_schema")`.
    """

    def __init__(self, *, durable: bool = True) -> None:
        self._durable = durable
        self._folder = Path()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Server:
        place = binaries()
        self._folder = Path(tempfile.mkdtemp(prefix="bidplane-pg-"))
        try:
            self._start(place)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._remove()

    def dsn(self, schema: str) -> str:
        """The address of a schema, created if it does not exist: a separate ledger for each."""
        import psycopg

        with psycopg.connect(self._base, autocommit=True) as connection:
            connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
        return f"{self._base}&options={quote(f'-csearch_path={schema}')}"

    @property
    def _base(self) -> str:
        return f"postgresql:///postgres?host={quote(str(self._folder), safe='')}&user=bidplane"

    def _start(self, binary_folder: Path) -> None:
        as_user = _unprivileged(self._folder)
        data = self._folder / "data"
        completed = subprocess.run(
            [
                *as_user,
                binary_folder / "initdb",
                *("-D", data, "-U", "bidplane", "-A", "trust", "-E", "UTF8", "--no-locale", "-N"),
            ],
            capture_output=True,
            text=True,
            cwd=self._folder,
        )
        if completed.returncode:
            raise NoPostgres(f"initdb failed: {completed.stderr.strip()[-300:]}")
        fsync = "on" if self._durable else "off"
        log = (self._folder / "log").open("wb")
        with log:
            self._process = subprocess.Popen(
                [
                    *as_user,
                    binary_folder / "postgres",
                    *("-D", data, "-k", self._folder, "-c", "listen_addresses="),
                    *("-c", f"fsync={fsync}", "-c", f"full_page_writes={fsync}"),
                    *("-c", "max_connections=50", "-c", "shared_buffers=64MB"),
                ],
                stdout=log,
                stderr=log,
                cwd=self._folder,
            )
        self._wait_ready()

    def _wait_ready(self) -> None:
        try:
            import psycopg
        except ImportError:
            raise NoPostgres(
                "psycopg is not installed: `pip install 'bidplane[postgres]'`"
            ) from None
        assert self._process is not None
        end = time.monotonic() + _START_SECONDS
        while True:
            try:
                psycopg.connect(self._base, connect_timeout=2).close()
                return
            except psycopg.OperationalError as error:
                if self._process.poll() is not None or time.monotonic() > end:
                    log_tail = (self._folder / "log").read_text(errors="replace").strip()[-300:]
                    raise NoPostgres(f"PostgreSQL did not start: {log_tail or error}") from error
                time.sleep(0.05)

    def _remove(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)  # fast shutdown
            try:
                self._process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        shutil.rmtree(self._folder, ignore_errors=True)


def _unprivileged(folder: Path) -> list[str]:
    """
    The command prefix that leaves root's rights; the folder is given to the unprivileged user.
    """
    if os.getuid() != 0:
        return []
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise NoPostgres("PostgreSQL does not run as root, and there is no setpriv to leave it")
    for name in _USERS:
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        os.chown(folder, user.pw_uid, user.pw_gid)
        return [
            setpriv,
            *("--reuid", str(user.pw_uid), "--regid", str(user.pw_gid), "--clear-groups"),
            # It ends if the process that started it is killed.
            *("--pdeathsig", "INT"),
        ]
    raise NoPostgres("PostgreSQL does not run as root, and there is no unprivileged user")
