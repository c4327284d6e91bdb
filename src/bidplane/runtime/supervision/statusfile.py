"""
The state of an installation's processes, in a file that the supervisor updates.

The file has its full size from the start and is overwritten in place, so that it can still say
that the disk is full.
"""

from __future__ import annotations

import enum
import os
from pathlib import Path

import msgspec

from bidplane.errors import UserError

_SIZE = 32 * 1024
_READS = 20  # a reader may meet a half-written file; the next read is whole


class ProcessState(enum.StrEnum):
    STARTING = "starting"
    READY = "ready"
    NOT_READY = "not ready"
    RESTARTING = "restarting"
    STOPPED = "stopped"


class PartStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One process of an installation."""

    name: str
    state: ProcessState = ProcessState.STARTING
    pid: int = 0
    since: float = 0.0  # in this state, seconds since 1970
    restarts: int = 0
    message: str = ""


class InstallationStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    at: float  # when it was written
    supervisor: int = 0  # its process id
    parts: tuple[PartStatus, ...] = ()
    disk_free: int = 0  # bytes
    disk_problem: str = ""


class StatusFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    def write(self, status: InstallationStatus) -> None:
        """Overwrite the file. On a disk that was full before the first write, that fails."""
        text = msgspec.json.encode(status)
        if len(text) > _SIZE:
            parts = tuple(msgspec.structs.replace(p, message="") for p in status.parts)
            text = msgspec.json.encode(msgspec.structs.replace(status, parts=parts))
        if self._descriptor < 0:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.pwrite(self._descriptor, text.ljust(_SIZE), 0)

    def read(self) -> InstallationStatus | None:
        """Return the status that was written last; None if none was."""
        for _ in range(_READS):
            try:
                return msgspec.json.decode(self._path.read_bytes(), type=InstallationStatus)
            except FileNotFoundError:
                return None
            except msgspec.MsgspecError:
                continue
        raise UserError(f"{self._path} is damaged; `bidplane up` writes it anew")

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
