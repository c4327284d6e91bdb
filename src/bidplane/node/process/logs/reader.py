"""
Reads container logs: files in the CRI's format, numbered as they are rotated.

    2026-11-16T08:00:00.123456789Z stdout F a whole line
    2026-11-16T08:00:00.123456789Z stdout P the first part of a long one
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

from bidplane.api.times import parse_rfc3339
from bidplane.machinery.clock import Clock
from bidplane.node.api import LogOptions

_CHUNK = 1 << 20
_LOOK_SECONDS = 0.1
_STAMP = len("2026-11-16T08:00:00.123456789Z")


def _numbers(folder: Path) -> list[int]:
    return sorted(int(path.stem) for path in folder.glob("*.log"))


def _time_of(line: bytes) -> float:
    try:
        # `datetime` has microseconds, not nanoseconds.
        return parse_rfc3339(line[: _STAMP - 4].decode() + "Z")
    except ValueError:
        return 0.0


def format_line(line: bytes, *, timestamps: bool) -> bytes:
    """Return one line of a log file without its stream and tag, and maybe its timestamp."""
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

    def read_lines(self) -> list[bytes]:
        """Return the complete lines written since the last call."""
        complete: list[bytes] = []
        while True:
            data = self._read()
            if data:
                lines = (self._rest + data).split(b"\n")
                self._rest = lines.pop()
                complete += [line + b"\n" for line in lines]
                if len(complete) > 4096:
                    return complete
            elif not self._next_file():
                return complete

    def _read(self) -> bytes:
        try:
            with (self._folder / f"{self.number}.log").open("rb") as file:
                file.seek(self.offset)
                data = file.read(_CHUNK)
        except FileNotFoundError:
            return b""
        self.offset += len(data)
        return data

    def _next_file(self) -> bool:
        """Go to the next file, if there is one; return false if there is none."""
        later = [number for number in _numbers(self._folder) if number > self.number]
        if not later:
            return False
        if self._read_again():
            return True
        self.number, self.offset, self._rest = later[0], 0, b""
        return True

    def _read_again(self) -> bool:
        """Return true if the file grew between our last read and the rotation."""
        path = self._folder / f"{self.number}.log"
        return path.exists() and path.stat().st_size > self.offset


async def read(
    folder: Path, options: LogOptions, *, running: Callable[[], bool], clock: Clock
) -> AsyncIterator[bytes]:
    """Yield the log in chunks, up to the byte limit."""
    remaining = options.limit_bytes
    async for chunk in _read(folder, options, running=running, clock=clock):
        if remaining is None:
            yield chunk
            continue
        yield chunk[:remaining]
        remaining -= len(chunk)
        if remaining <= 0:
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
        lines = tail.read_lines()
        if since is not None and lines:
            selected = [line for line in lines if _time_of(line) >= since]
            since = None if selected else since  # from the first on, all are later
        else:
            selected = lines
        if selected:
            yield b"".join(format_line(line, timestamps=options.timestamps) for line in selected)
        if lines:
            continue
        if not options.follow or not still:
            return
        await clock.sleep(_LOOK_SECONDS)


def _last(folder: Path, end: Tail, options: LogOptions) -> bytes:
    """Return the last lines before `end`; the parts of a long line count as one."""
    count = options.tail_lines or 0
    whole_lines: list[list[bytes]] = []
    for number in reversed([index for index in _numbers(folder) if index <= end.number]):
        if len(whole_lines) >= count:
            break
        try:
            content = (folder / f"{number}.log").read_bytes()
        except FileNotFoundError:
            break  # rotated away while we read
        whole_lines = (
            _group_parts(content[: end.offset] if number == end.number else content) + whole_lines
        )
    last = [line for whole in whole_lines[max(len(whole_lines) - count, 0) :] for line in whole]
    if options.since is not None:
        last = [line for line in last if _time_of(line) >= options.since]
    return b"".join(format_line(line, timestamps=options.timestamps) for line in last)


def _group_parts(content: bytes) -> list[list[bytes]]:
    whole_lines: list[list[bytes]] = []
    parts: list[bytes] = []
    for line in content.splitlines(keepends=True):
        parts.append(line)
        if not line[_STAMP + 7 :].startswith(b" P "):
            whole_lines.append(parts)
            parts = []
    return [*whole_lines, parts] if parts else whole_lines


def follow_output(
    folder: Path, *, running: Callable[[], bool], clock: Clock
) -> AsyncIterator[tuple[str, bytes]]:
    """Yield (stream, data) of the output after this call."""
    return _follow_output(Tail.at_end(folder), running, clock)


async def _follow_output(
    tail: Tail, running: Callable[[], bool], clock: Clock
) -> AsyncIterator[tuple[str, bytes]]:
    while True:
        still = running()
        lines = tail.read_lines()
        for line in lines:
            stream = line[_STAMP + 1 : _STAMP + 7].decode()
            yield stream, format_line(line, timestamps=False)
        if lines:
            continue
        if not still:
            return
        await clock.sleep(_LOOK_SECONDS / 5)
