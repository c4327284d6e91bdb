"""
An installation whose processes can be killed and started again within milliseconds.

Its supervisor imports everything once and forks: what is killed is the real server, exchange or
node, at a real moment, but a new one does not spend a second importing. It is told `kill NAME` on
its standard input, and answers `NAME` when another process runs. Run as a program, with a file of
images this machine is the fleet's only node, and an activator runs, too.
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
MACHINE_NAMES = ("server", "exchange", "activator", "machine")


class Forking:
    def __init__(self, data: Path, fleet: Path, images: Path | None) -> None:
        running = self._running = Running(Installation(data), port=0, fleet=fleet)
        self.names = NAMES if images is None else MACHINE_NAMES
        options = {"images": images, "volumes": None, "trusted": None, "egress": False}
        running.use_machine("", options if images is not None else None)
        running.installation.write_address(
            Address(
                url=running.url,
                exchange_url=running.exchange_url,
                host_uid="",
                activator_url=running.services_url,
                activators=1,
                domain=running.domain,
            )
        )
        self._pids: dict[str, int] = {}
        # Each process watches its standard input, which ends with this one.
        self._alive, self._keep = os.pipe()

    @property
    def address(self) -> str:
        running = self._running
        return f"{running.url} {running.exchange_url} {running.services_url}"

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
    data, fleet, *images = map(Path, sys.argv[1:])
    forking = Forking(data, fleet, images[0] if images else None)
    for name in forking.names:
        forking.start(name)
    print(forking.address, flush=True)
    for line in sys.stdin:
        _, name = line.split()
        forking.kill(name)
        print(name, flush=True)
    forking.stop()


if __name__ == "__main__":
    main()
