"""
Reads what a container printed: files in the CRI's format, numbered as they are rotated.

    2026-11-16T08:00:00.123456789Z stdout F a whole line
    2026-11-16T08:00:00.123456789Z stdout P the first part of a long one
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

from bidplane.machinery.clock import Clock, parse_rfc3339
from bidplane.node.api import LogOptions

_CHUNK = 1 << 20
_LOOK_SECONDS = 0.1
_STAMP = len("2026-11-16T08:00:00.123456789Z")


def _numbers(folder: Path) -> list[int]:
    return sorted(int(path.stem) for path in folder.glob("*.log"))


def _time_of(line: bytes) -> float:
    try:
        # Microseconds: what a nanosecond is to `datetime`.
        return parse_rfc3339(line[: _STAMP - 4].decode() + "Z")
    except ValueError:
        return 0.0


def shown(line: bytes, *, timestamps: bool) -> bytes:
    """One line of a log file as people see it."""
    stamp, _, rest = line.partition(b" ")
    _, _, rest = rest.partition(b" ")
    tag, _, text = rest.partition(b" ")
    if tag == b"P":
        text = text.removesuffix(b"\n")  # the rest of the line follows
    return stamp + b" " + text if timestamps else text


class Tail:
    """Follows the files of one run of a container, across rotations."""

    def __init__(self, folder: Path, number: int = 0, offset: int = 0) -> None:
        self._folder = folder
        self.number = number
        self.offset = offset
        self._rest = b""

    @classmethod
    def at_end(cls, folder: Path) -> Tail:
        numbers = _numbers(folder)
        if not numbers:
            return cls(folder)
        size = (folder / f"{numbers[-1]}.log").stat().st_size
        return cls(folder, numbers[-1], size)

    def more(self) -> list[bytes]:
        """The whole lines written since the last look."""
        found: list[bytes] = []
        while True:
            data = self._read()
            if data:
                lines = (self._rest + data).split(b"\n")
                self._rest = lines.pop()
                found += [line + b"\n" for line in lines]
                if len(found) > 4096:
                    return found
            elif not self._turn():
                return found

    def _read(self) -> bytes:
        try:
            with (self._folder / f"{self.number}.log").open("rb") as file:
                file.seek(self.offset)
                data = file.read(_CHUNK)
        except FileNotFoundError:
            return b""
        self.offset += len(data)
        return data

    def _turn(self) -> bool:
        """To the next file, if there is one: then this one is complete."""
        later = [number for number in _numbers(self._folder) if number > self.number]
        if not later:
            return False
        if self._read_again():
            return True
        self.number, self.offset, self._rest = later[0], 0, b""
        return True

    def _read_again(self) -> bool:
        """Something may have come between our last read and the rotation."""
        path = self._folder / f"{self.number}.log"
        return path.exists() and path.stat().st_size > self.offset


async def read(
    folder: Path, options: LogOptions, *, running: Callable[[], bool], clock: Clock
) -> AsyncIterator[bytes]:
    """What was printed, in chunks."""
    left = options.limit_bytes
    async for chunk in _read(folder, options, running=running, clock=clock):
        if left is None:
            yield chunk
            continue
        yield chunk[:left]
        left -= len(chunk)
        if left <= 0:
            return


async def _read(
    folder: Path, options: LogOptions, *, running: Callable[[], bool], clock: Clock
) -> AsyncIterator[bytes]:
    tail = Tail.at_end(folder) if options.tail_lines is not None else Tail(folder)
    if options.tail_lines is not None:
        yield _last(folder, tail, options)
    since = options.since
    while True:
        still = running()  # before the look: what it printed last must be seen
        lines = tail.more()
        if since is not None and lines:
            kept = [line for line in lines if _time_of(line) >= since]
            since = None if kept else since  # from the first on, all are later
        else:
            kept = lines
        if kept:
            yield b"".join(shown(line, timestamps=options.timestamps) for line in kept)
        if lines:
            continue
        if not options.follow or not still:
            return
        await clock.sleep(_LOOK_SECONDS)


def _last(folder: Path, end: Tail, options: LogOptions) -> bytes:
    """The last lines before `end`; parts of one line are one line."""
    count = options.tail_lines or 0
    found: list[list[bytes]] = []
    for number in reversed([known for known in _numbers(folder) if known <= end.number]):
        if len(found) >= count:
            break
        try:
            content = (folder / f"{number}.log").read_bytes()
        except FileNotFoundError:
            break  # rotated away while we read
        found = _wholes(content[: end.offset] if number == end.number else content) + found
    last = [line for whole in found[max(len(found) - count, 0) :] for line in whole]
    if options.since is not None:
        last = [line for line in last if _time_of(line) >= options.since]
    return b"".join(shown(line, timestamps=options.timestamps) for line in last)


def _wholes(content: bytes) -> list[list[bytes]]:
    found: list[list[bytes]] = []
    parts: list[bytes] = []
    for line in content.splitlines(keepends=True):
        parts.append(line)
        if not line[_STAMP + 7 :].startswith(b" P "):
            found.append(parts)
            parts = []
    return [*found, parts] if parts else found


def attached(
    folder: Path, *, running: Callable[[], bool], clock: Clock
) -> AsyncIterator[tuple[str, bytes]]:
    """From now on, by stream: from this call, not from when it is first read."""
    return _attached(Tail.at_end(folder), running, clock)


async def _attached(
    tail: Tail, running: Callable[[], bool], clock: Clock
) -> AsyncIterator[tuple[str, bytes]]:
    while True:
        still = running()
        lines = tail.more()
        for line in lines:
            stream = line[_STAMP + 1 : _STAMP + 7].decode()
            yield stream, shown(line, timestamps=False)
        if lines:
            continue
        if not still:
            return
        await clock.sleep(_LOOK_SECONDS / 5)
