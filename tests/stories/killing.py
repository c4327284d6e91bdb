"""
An installation whose processes can be killed and started again within milliseconds.

Its supervisor imports everything once and forks: what is killed is the real server, exchange or
node, at a real moment, but a new one does not spend a second importing. It is told `kill NAME` on
its standard input, and answers `NAME` when another process runs. Run as a program.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from bidplane.cli.operate import process
from bidplane.cli.operate.up import Running
from bidplane.runtime.installation import Address, Installation

NAMES = ("server", "exchange", "node")


class Forking:
    def __init__(self, data: Path, fleet: Path) -> None:
        self._running = Running(Installation(data), port=0, fleet=fleet)
        where = self._running.installation
        where.write_address(
            Address(url=self._running.url, exchange_url=self._running.exchange_url, host_uid="")
        )
        self._pids: dict[str, int] = {}
        # Each process watches its standard input, which ends with this one.
        self._alive, self._keep = os.pipe()

    @property
    def address(self) -> str:
        return f"{self._running.url} {self._running.exchange_url}"

    def start(self, name: str) -> None:
        pid = os.fork()
        if pid:
            self._pids[name] = pid
            return
        os.close(self._keep)
        os.dup2(self._alive, sys.stdin.fileno())
        where = self._running.installation
        log = os.open(where.logs / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, sys.stdout.fileno())
        os.dup2(log, sys.stderr.fileno())
        try:
            descriptor = os.dup(self._running._listeners[name][0].fileno())
            getattr(process, name)(where.folder.resolve(), descriptor)
        finally:
            os._exit(1)

    def kill(self, name: str) -> None:
        os.kill(self._pids[name], signal.SIGKILL)
        os.waitpid(self._pids[name], 0)
        self.start(name)

    def stop(self) -> None:
        for pid in self._pids.values():
            os.kill(pid, signal.SIGTERM)
        for pid in self._pids.values():
            os.waitpid(pid, 0)


def main() -> None:
    forking = Forking(Path(sys.argv[1]), Path(sys.argv[2]))
    for name in NAMES:
        forking.start(name)
    print(forking.address, flush=True)
    for line in sys.stdin:
        _, name = line.split()
        forking.kill(name)
        print(name, flush=True)
    forking.stop()


if __name__ == "__main__":
    main()
