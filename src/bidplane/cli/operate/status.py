"""`bidplane status`: the state of each part of the installation."""

from __future__ import annotations

import sys
import time

import msgspec

from bidplane.cli.common import Data, Json, console, installation, print_json, print_table
from bidplane.errors import UserError
from bidplane.runtime.installation import Installation
from bidplane.runtime.supervision.statusfile import InstallationStatus, ProcessState

_STALE_SECONDS = 15.0  # the file is written every two


def status(*, json: Json = False, data: Data = None) -> None:
    """
    Show the state of each part of the installation: ready, restarting, hung; and its disk.

    The exit code is 0 if every part is ready, else 1.

    For example:
        bidplane status
        bidplane status --json | jq '.parts[] | select(.state != "ready")'
    """
    target = installation(data)
    address = target.address()  # `UserError` where nothing was ever started
    problem, reported = _read_status(target)
    parts = reported.parts if reported is not None else ()
    ready = not problem and all(part.state is ProcessState.READY for part in parts)
    if json:
        print_json(
            {
                "running": target.is_running,
                "ready": ready,
                "problem": problem,
                "url": address.url,
                "exchangeUrl": address.exchange_url,
                **(msgspec.to_builtins(reported) if reported is not None else {"parts": []}),
            }
        )
    else:
        _print(address.url, problem, reported)
    sys.exit(0 if ready else 1)


def _read_status(target: Installation) -> tuple[str, InstallationStatus | None]:
    """The problem of the installation as a whole, if any, and the status its supervisor wrote."""
    if not target.is_running:
        return f"nothing runs in {target.folder}: start it with `bidplane up`", None
    try:
        reported = target.status.read()
    except UserError as error:
        return str(error), None
    if reported is None:
        return "Bidplane is starting", None
    age = time.time() - reported.at
    if age > _STALE_SECONDS:
        return (
            f"`bidplane up` (process {reported.supervisor}) has been silent for {age:.0f} s",
            reported,
        )
    return reported.disk_problem, reported


def _print(url: str, problem: str, reported: InstallationStatus | None) -> None:
    console.print(f"Bidplane at {url}", markup=False)
    if reported is not None:
        print_table(
            ["part", "state", "pid", "for", "restarts", "notes"],
            [
                [
                    part.name,
                    part.state.value,
                    str(part.pid or "-"),
                    _duration(reported.at - part.since),
                    str(part.restarts),
                    part.message,
                ]
                for part in reported.parts
            ],
            right="pid for restarts",
        )
        if not reported.disk_problem:
            console.print(f"disk: {reported.disk_free / 2**30:.1f} GiB free")
    if problem:
        console.print(problem, style="bold red", markup=False, soft_wrap=True)


def _duration(seconds: float) -> str:
    """The two largest units, as kubectl writes an age."""
    total = max(0, int(seconds))
    units = [
        ("d", total // 86400),
        ("h", total // 3600 % 24),
        ("m", total // 60 % 60),
        ("s", total % 60),
    ]
    parts = [f"{count}{unit}" for unit, count in units if count]
    return "".join(parts[:2]) or "0s"
