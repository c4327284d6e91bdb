"""
Monitoring of an installation for its operator: its processes and its disk.

News for a person is printed once, in the terminal of `bidplane up`; the current state is in the
status file, for `bidplane status`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import time
from collections.abc import Callable, Sequence

from bidplane.runtime.installation import Installation
from bidplane.runtime.supervision.statusfile import InstallationStatus, PartStatus

DISK_LEAST_BYTES = 64 * 2**20  # below it, writes of a plane may be refused at any moment
_LOOK_SECONDS = 2.0


class Monitor:
    def __init__(
        self,
        where: Installation,
        *,
        say: Callable[[str], None],
        disk_free: Callable[[], int] | None = None,
    ) -> None:
        self._where, self._say = where, say
        self._disk_free = disk_free or (lambda: shutil.disk_usage(where.folder).free)
        self._free = 0
        self._problem = ""
        self.statuses: Callable[[], Sequence[PartStatus]] = lambda: ()

    def changed(self, part: PartStatus, news: str) -> None:
        """Report a change of a process; called by the supervisor."""
        if news:
            self._say(news)
        self._write()

    def look_at_disk(self) -> None:
        """Check the free space, and report when it becomes short or enough."""
        problem = self._disk_problem()
        if problem and not self._problem:
            self._say(f"disk: {problem}")
        elif self._problem and not problem:
            self._say("disk: there is room again")
        self._problem = problem
        self._write()

    async def watch_disk(self) -> None:
        """Check the disk every few seconds, until cancelled."""
        while True:
            self.look_at_disk()
            await asyncio.sleep(_LOOK_SECONDS)

    def close(self) -> None:
        self._where.status.close()

    def _disk_problem(self) -> str:
        try:
            self._free = self._disk_free()
        except OSError as error:
            return f"{self._where.folder} cannot be read: {error.strerror or error}"
        if self._free >= DISK_LEAST_BYTES:
            return ""
        return (
            f"{self._where.folder} has {self._free // 2**20} MiB left; writes are refused while"
            " it is full: make room"
        )

    def _write(self) -> None:
        status = InstallationStatus(
            at=time.time(),
            supervisor=os.getpid(),
            parts=tuple(self.statuses()),
            disk_free=self._free,
            disk_problem=self._problem,
        )
        with contextlib.suppress(OSError):  # the disk was full before the first write
            self._where.status.write(status)
