"""
Runs processes that must not outlive their owner.

The owner starts this file as a program and talks to it over stdin and stdout, one JSON object per
line: `{"argv": [...], "log": "file"}` starts a process and is answered with `{"pid": n}` or
`{"error": "…"}`; `{}` is answered with `{"exited": {"pid": code}}`. When stdin ends, or the owner
is gone, every process is ended, last started first, and their folder is removed. The arguments are
the owner's process id and that folder.

Why a process of its own: an exit handler does not run when pytest is killed, and the kernel's
parent-death signal is tied to the thread that forked, not to the process. Here the forking thread
is the only one, so that signal is used too, for the day this process itself is killed.

Standard library only, and run with `-I -S`: it is up in a few hundredths of a second.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from typing import Any

GRACE = 5.0  # seconds to end in good order before SIGKILL
OWNER_CHECK = 1.0  # seconds; a fork of the owner may hold the pipe open after the owner died
PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def _die_with_parent() -> None:
    if _libc is not None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _start(order: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start a process that dies with us."""
    with open(order["log"], "ab") as log:
        return subprocess.Popen(
            order["argv"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )


def _terminate(process: subprocess.Popen[bytes]) -> None:
    """End a process and its group: SIGTERM, then SIGKILL."""
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        # The whole group: what it started goes with it. It leads its group, and is not reaped
        # yet, so the number cannot have become someone else's.
        os.killpg(process.pid, signal_number)
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            continue


def _carry_out(line: bytes, processes: list[subprocess.Popen[bytes]]) -> dict[str, Any]:
    """Carry out one order; return the answer."""
    order = json.loads(line)
    if not order:
        return {"exited": {p.pid: p.returncode for p in processes if p.poll() is not None}}
    try:
        process = _start(order)
    except OSError as error:
        return {"error": str(error)}
    processes.append(process)
    return {"pid": process.pid}


def _serve(owner: int, processes: list[subprocess.Popen[bytes]]) -> None:
    """Carry out orders until the owner is gone."""
    pending = b""
    while os.getppid() == owner:
        if not select.select([0], [], [], OWNER_CHECK)[0]:
            continue
        chunk = os.read(0, 65536)
        if not chunk:
            return
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            os.write(1, json.dumps(_carry_out(line, processes)).encode() + b"\n")


def main() -> None:
    owner, folder = int(sys.argv[1]), sys.argv[2]
    # Ctrl-C is for the owner, which then closes our stdin; anything else may ask us to end now.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    processes: list[subprocess.Popen[bytes]] = []
    try:
        _serve(owner, processes)
    except BrokenPipeError:
        pass  # the owner died between its question and our answer
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for process in reversed(processes):
            _terminate(process)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
