"""The digest of each day, in UTC: a Markdown file of the data folder, and a post of the webhook."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import structlog

from bidplane.api.times import rfc3339
from bidplane.core.gate.digest import Digest, markdown
from bidplane.errors import UserError

KEPT_DIGESTS = 90
_DAY = 86_400.0
_MOST_POSTED = 20_000  # characters

log = structlog.get_logger(__name__)

# Returns what happened from one time to another; None if nothing was recorded until then.
DigestReader = Callable[[float, float], Awaitable[Digest | None]]


class DailyDigests:
    """Writes the digest of a day once that day has ended, whoever else does so, too."""

    def __init__(
        self,
        folder: Path,
        read: DigestReader,
        *,
        tell: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        self._folder, self._read, self._tell = folder, read, tell
        self._seen = 0.0  # the end of the day that needs nothing more

    async def write_due(self, now: float) -> Path | None:
        """
        Write the digest of the day that ended last, if it is not there; return its file. What
        cannot be read or written is tried again at the next call.
        """
        end = now - now % _DAY
        if end == self._seen:
            return None
        try:
            path = await self._write(end - _DAY, end)
        except (UserError, OSError) as error:
            log.warning("the digest of the day could not be written", error=str(error))
            return None
        self._seen = end
        return path

    async def _write(self, begin: float, end: float) -> Path | None:
        path = self._folder / f"{rfc3339(begin)[:10]}.md"
        if path.exists():
            return None
        digest = await self._read(begin, end)
        if digest is None:
            return None
        page = markdown(digest)
        self._folder.parent.mkdir(mode=0o700, exist_ok=True)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        if not _create(path, page):
            return None
        for old in sorted(self._folder.glob("????-??-??.md"))[:-KEPT_DIGESTS]:
            old.unlink(missing_ok=True)
        if self._tell is not None:
            await self._tell(_shortened(page))
        return path


def _create(path: Path, text: str) -> bool:
    """Write a file as a whole; return False if it is there already: another pilot was first."""
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(text)
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        return False
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()
    return True


def _shortened(page: str) -> str:
    if len(page) <= _MOST_POSTED:
        return page
    return page[:_MOST_POSTED].rpartition("\n")[0] + "\n\n… and more: `bidplane audit digest`"
