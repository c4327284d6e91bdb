"""The idle ladder of an Endpoint, as `bidplane endpoint show` and `why` print it."""

from __future__ import annotations

from collections.abc import Iterator

from bidplane.api.endpoint import EndpointStatus
from bidplane.api.idling.ladder import HoldingStatus, LadderStatus, LadderWindows, Rung, WakeTimes
from bidplane.api.reading import Endpoint
from bidplane.core.idling.ladder import holdings

_ON = {
    Rung.FALLING_ASLEEP: Rung.READY,
    Rung.ROUSING: Rung.ASLEEP,
    Rung.STARTING: Rung.RELEASED,
}


def ready_window(endpoint: Endpoint) -> int:
    """Return the seconds without use after which a ready service goes down a rung."""
    return _windows(endpoint).ready


def _windows(endpoint: Endpoint) -> LadderWindows:
    status, spec = endpoint.status, endpoint.spec
    if status is not None and status.ladder is not None:
        return status.ladder.windows
    return LadderWindows(ready=spec.idle_seconds)


def ladder_lines(endpoint: Endpoint) -> Iterator[tuple[str, str]]:
    """Yield a label and a text for each rung that an Endpoint has, and for what went wrong."""
    status = endpoint.status or EndpointStatus()
    ladder, windows = status.ladder or LadderStatus(), _windows(endpoint)
    keeps = windows.stopped > 0
    lengths = {
        Rung.READY: windows.ready,
        **({Rung.ASLEEP: windows.asleep} if windows.asleep else {}),
        **({Rung.STOPPED: windows.stopped} if keeps else {}),
        Rung.RELEASED: 0,
    }
    present = _ON.get(ladder.rung, ladder.rung)
    for rung, seconds in lengths.items():
        parts = [holdings(endpoint.spec, rung)]
        if seconds:
            parts.append(f"for {seconds} s without use")
        if wake := _wake(ladder.wake, rung):
            parts.append(f"its last wake from there took {wake / 1000:.1f} s")
        if rung is present:
            parts.append(f"now {ladder.rung.value}{_rent(rung, status.holding)}")
        yield rung.value.lower(), "; ".join(parts)
    if ladder.idle:
        yield "not idle", ladder.idle
    if ladder.problem:
        yield "problem", f"{ladder.problem}: {ladder.message}"
    if status.holding.message:
        yield "lease", status.holding.message


def _wake(wake: WakeTimes, rung: Rung) -> int:
    times = {Rung.ASLEEP: wake.asleep, Rung.STOPPED: wake.stopped, Rung.RELEASED: wake.released}
    return times.get(rung, 0)


def _rent(rung: Rung, holding: HoldingStatus) -> str:
    if not holding.leases:
        return ""
    leases = ", ".join(holding.leases)
    ends = ", giving back" if rung is Rung.RELEASED else ","
    return f"{ends} {holding.devices} GPUs of {leases} for {holding.paid_per_hour} credits an hour"
