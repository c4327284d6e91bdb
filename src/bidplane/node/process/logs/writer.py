"""
Writes container logs: lines with time and stream, in files of a limited size.

    N.log     in the attempt's folder; the newest has the highest N; in the CRI's format
"""

import os
import time

_LONGEST_LINE = 16 * 1024  # as in the CRI: longer ones are cut into parts


class Log:
    """Lines with time and stream, in files of a limited size."""

    def __init__(self, folder: str, most_bytes: int, most_files: int, *, at_once: bool) -> None:
        self._folder = folder
        self._most_bytes = most_bytes
        self._most_files = most_files
        self._at_once = at_once  # a terminal's half lines must be seen
        self._number = 0
        self._written = 0
        self._file = -1
        self._rest = {"stdout": b"", "stderr": b""}
        self._next()

    def _next(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._number += 1
        name = os.path.join(self._folder, f"{self._number}.log")
        self._file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
        self._written = 0
        oldest = os.path.join(self._folder, f"{self._number - self._most_files}.log")
        if self._number > self._most_files and os.path.exists(oldest):
            os.unlink(oldest)

    def add(self, stream: str, data: bytes) -> None:
        whole = self._rest[stream] + data
        lines = whole.split(b"\n")
        rest = lines.pop()
        stamp = _stamp()
        full, part = f"{stamp} {stream} F ".encode(), f"{stamp} {stream} P ".encode()
        out = []
        for line in lines:
            while len(line) > _LONGEST_LINE:
                out.append(part + line[:_LONGEST_LINE])
                line = line[_LONGEST_LINE:]
            out.append(full + line)
        while len(rest) > _LONGEST_LINE:
            out.append(part + rest[:_LONGEST_LINE])
            rest = rest[_LONGEST_LINE:]
        if self._at_once and rest:
            out.append(part + rest)
            rest = b""
        self._rest[stream] = rest
        if out:
            self._write(b"\n".join(out) + b"\n")

    def _write(self, data: bytes) -> None:
        try:
            while data:
                written = os.write(self._file, data)
                self._written += written
                data = data[written:]
        except OSError:
            return  # the disk is full: the container continues, its output is lost
        if self._written >= self._most_bytes:
            self._next()

    def finish(self) -> None:
        for stream, rest in self._rest.items():
            if rest:
                # It has no end, so it is a part: readers add no newline.
                self._write(f"{_stamp()} {stream} P ".encode() + rest + b"\n")


def _stamp() -> str:
    now = time.time_ns()
    seconds, nanos = divmod(now, 1_000_000_000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{nanos:09d}Z"
