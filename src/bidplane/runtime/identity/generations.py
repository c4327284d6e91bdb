"""
Generations of a plane's credentials: a rotation revokes all earlier ones.

    credentials.json    {"UID of a plane": generation}

A token or certificate carries the generation it was made in. The file belongs to the
installation, not to the plane: a plane that is restored from a snapshot does not bring its revoked
credentials back. Every process reads it, and sees a change with the next credential it checks.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import msgspec

from bidplane.errors import UserError


class Generations:
    """
    The current generation of each plane. Without a path, in memory: for tests, and for processes
    that rotate nothing.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._current: dict[str, int] = {}
        self._stamp: tuple[int, int, int] | None = None

    def of(self, uid: str) -> int:
        """Return the generation of the plane with that uid; 0 if it was never rotated."""
        self._refresh()
        return self._current.get(uid, 0)

    def advance(self, uid: str) -> int:
        """Begin a new generation, on disk when this returns; earlier credentials are revoked."""
        self._refresh()
        current = {**self._current, uid: self._current.get(uid, 0) + 1}
        if self._path is not None:
            temporary = self._path.with_name(f".{self._path.name}-{secrets.token_hex(8)}")
            with open(
                os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb"
            ) as file:
                file.write(msgspec.json.encode(current))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._path)
            folder = os.open(self._path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        self._current = current
        return current[uid]

    def _refresh(self) -> None:
        if self._path is None:
            return
        try:
            file_status = self._path.stat()
        except FileNotFoundError:
            if self._stamp is not None:
                raise UserError(
                    f"{self._path} is gone: without it revoked credentials would work again;"
                    " put it back"
                ) from None
            return
        stamp = (file_status.st_ino, file_status.st_mtime_ns, file_status.st_size)
        if stamp == self._stamp:
            return
        try:
            self._current = msgspec.json.decode(self._path.read_bytes(), type=dict[str, int])
        except msgspec.MsgspecError as error:
            raise UserError(
                f"{self._path} is damaged ({error}): put a copy back, or delete it and rotate"
                " every agent whose credentials were revoked"
            ) from None
        self._stamp = stamp
