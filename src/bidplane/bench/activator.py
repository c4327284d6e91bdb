"""
The activator beside other proxies: CPU and time per request and per event of a stream; the memory
of held requests; and the time of a wake: its own part once a pod is ready, and a whole cold start.

Every proxy is one process with one worker in front of the same backend, on keep-alive connections.
The activator has 500 further Endpoints. CPU is that of the proxy's process alone; added time is
beside the same requests sent to the backend directly.
"""

from __future__ import annotations

import asyncio
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import uvloop

from bidplane.bench import coldstart
from bidplane.bench.report import (
    BenchReport,
    Result,
    at_least,
    at_most,
    less,
    more,
    ratio_at_least,
    say,
)
from bidplane.bench.support import proxies
from bidplane.bench.support.activator_process import DOMAIN, WAKING
from bidplane.bench.support.http_load import EVENTS, load
from bidplane.bench.support.proxies import RunningProxy

HOST = f"warm.{DOMAIN}"
CONNECTIONS = (1, 32, 256)
STREAMS = 32
SLEEPING = 20
OTHERS = 500
_READY_SECONDS = 60.0


class ProxyFigures(msgspec.Struct, frozen=True):
    """The figures of one proxy."""

    name: str
    cpu: dict[int, float]  # µs a request, by connections
    added: dict[int, tuple[float, float]]  # µs, median and 99th percentile, by connections
    event_cpu: float  # µs


def run(*, quick: bool, data: Path | None) -> BenchReport:
    count = 4_000 if quick else 20_000
    holds = min(4_000 if quick else 20_000, _descriptors() - 1_000)
    how = [
        f"{count:,} requests on each number of connections, {STREAMS} streams of {EVENTS} events;"
        f" {OTHERS} further Endpoints; one worker each; {holds:,} held over {SLEEPING} Endpoints"
    ]
    missing = [program for program in proxies.PEERS if program not in proxies.installed()]
    if missing:
        how.append(f"not installed, so left out: {', '.join(missing)}")
    if quick:
        how.append("quick: a fifth of the requests and of the holds")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bidplane-bench-")))
        backend, _ = stack.enter_context(
            proxies.listening_module("bidplane.bench.support.http_load")
        )
        direct = {n: uvloop.run(_times(backend, n, count)) for n in CONNECTIONS}
        notes = folder / "wakes"
        with _ours(backend, notes) as proxy:
            ours = _measure(proxy, direct, count)
            say("activator: wakes")
            own = _own_ms(proxy, notes, WAKING // 5 if quick else WAKING)
            say("activator: held requests")
            per_gib = uvloop.run(_held_per_gib(proxy, holds))
        peers = []
        for program in proxies.installed():
            place = folder / program
            place.mkdir()
            with proxies.PEERS[program](backend, place) as proxy:
                peers.append(_measure(proxy, direct, count))
    results = [result for peer in peers for result in _compare(ours, peer)]
    results += [] if peers else _alone(ours)
    results.append(more("held requests", "per GiB", per_gib, aim=at_least(100_000)))
    results.append(less("ready to answer, p50", "ms", own[len(own) // 2], aim=at_most(5)))
    results.append(less("ready to answer, p99", "ms", own[len(own) * 99 // 100]))
    results += coldstart.results(quick=quick)
    return BenchReport(name="activator", how="; ".join(how), results=tuple(results))


def _descriptors() -> int:
    """Raise the number of files that this process and its children may open; return it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    for limit in (1 << 16, most):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, max(limit, most)))
            return limit
        except (ValueError, OSError):
            continue
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


@contextmanager
def _ours(backend: int, notes: Path) -> Iterator[RunningProxy]:
    module = "bidplane.bench.support.activator_process"
    arguments = (str(backend), str(OTHERS), str(SLEEPING), str(notes))
    with proxies.listening_module(module, *arguments) as (port, pid):
        uvloop.run(_wait_ready(port))
        yield RunningProxy("activator", port, pid)


async def _wait_ready(port: int) -> None:
    """Wait until the Endpoint `warm` is served; its first requests may be held."""
    deadline = time.monotonic() + _READY_SECONDS
    while True:
        try:
            async with asyncio.timeout(1):
                await load(port, HOST, path="/", connections=1, count=1)
                return
        except (OSError, TimeoutError):
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)


def _measure(
    proxy: RunningProxy, direct: dict[int, tuple[float, float]], count: int
) -> ProxyFigures:
    say(f"activator: {proxy.name}")
    cpu, added = {}, {}
    for connections in CONNECTIONS:
        uvloop.run(_times(proxy.port, connections, connections * 4))  # warm
        before = proxy.cpu_seconds()
        median, high = uvloop.run(_times(proxy.port, connections, count))
        sent = count // connections * connections
        cpu[connections] = (proxy.cpu_seconds() - before) / sent * 1e6
        added[connections] = median - direct[connections][0], high - direct[connections][1]
    before = proxy.cpu_seconds()
    streams = count // 200 // STREAMS + 2
    uvloop.run(_streams(proxy.port, streams))
    event_cpu = (proxy.cpu_seconds() - before) / (streams * STREAMS * EVENTS) * 1e6
    return ProxyFigures(proxy.name, cpu, added, event_cpu)


async def _times(port: int, connections: int, count: int) -> tuple[float, float]:
    """Return the median and the 99th percentile of the requests' µs."""
    times = await load(
        port, HOST, path="/", connections=connections, count=max(1, count // connections)
    )
    return times[len(times) // 2] * 1e6, times[len(times) * 99 // 100] * 1e6


async def _streams(port: int, count: int) -> None:
    await load(port, HOST, path="/sse", connections=STREAMS, count=count)


def _own_ms(proxy: RunningProxy, notes: Path, count: int) -> list[float]:
    """Return the ms from the write that a pod is ready to the end of the held request's answer."""
    answered = uvloop.run(_wake_all(proxy.port, count))
    written = dict(line.split() for line in notes.read_text().splitlines())
    return sorted((at - float(written[name])) * 1e3 for name, at in answered.items())


async def _wake_all(port: int, count: int) -> dict[str, float]:
    """Wake one Endpoint after the other; return when each had answered."""
    answered = {}
    for number in range(count):
        name = f"wakes-{number}"
        await load(port, f"{name}.{DOMAIN}", path="/", connections=1, count=1)
        answered[name] = time.monotonic()
    return answered


async def _held_per_gib(proxy: RunningProxy, count: int) -> float:
    """Open so many requests for sleeping Endpoints, and return how many fit in a GiB."""
    await asyncio.sleep(1)
    before = proxy.resident_bytes()
    writers = []
    for number in range(count):
        _, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        host = f"asleep-{number % SLEEPING}.{DOMAIN}"
        writer.write(f"GET /v1/models HTTP/1.1\r\nHost: {host}\r\nAccept: */*\r\n\r\n".encode())
        writers.append(writer)
    await asyncio.sleep(3)
    grown = proxy.resident_bytes() - before
    for writer in writers:
        writer.transport.abort()
    return count * (1 << 30) / max(grown, 1)


def _compare(ours: ProxyFigures, peer: ProxyFigures) -> list[Result]:
    aims = {"nginx": ratio_at_least(1 / 1.6), "Go ReverseProxy": ratio_at_least(5)}
    results = [
        less(
            f"CPU per request, {connections} connections",
            "µs",
            ours.cpu[connections],
            peer=peer.cpu[connections],
            peer_name=peer.name,
            aim=aims.get(peer.name) if connections == 32 else None,
        )
        for connections in CONNECTIONS
    ]
    results.append(
        less("CPU per event", "µs", ours.event_cpu, peer=peer.event_cpu, peer_name=peer.name)
    )
    for connections in CONNECTIONS:
        for index, percentile in enumerate(("p50", "p99")):
            results.append(
                less(
                    f"added {percentile}, {connections} connections",
                    "µs",
                    ours.added[connections][index],
                    peer=peer.added[connections][index],
                    peer_name=peer.name,
                )
            )
    return results


def _alone(ours: ProxyFigures) -> list[Result]:
    """Return our figures where no peer is installed."""
    return [
        *(less(f"CPU per request, {n} connections", "µs", ours.cpu[n]) for n in CONNECTIONS),
        less("CPU per event", "µs", ours.event_cpu),
    ]
