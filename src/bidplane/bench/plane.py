"""
The cost and throughput of a plane, compared with a real etcd and kube-apiserver.

Server and load share the machine. Our server and the peer's both sync every write to disk before
they acknowledge it.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bidplane.bench.report import BenchReport, Result, at_least, at_most, less, more, say
from bidplane.bench.support import load
from bidplane.bench.support.load import LoadTarget, Rate

PEER = "etcd + kube-apiserver"
_CLIENTS = (1, 8, 32)


class Figures(NamedTuple):
    """The measured throughput of one API server."""

    writes: dict[int, Rate]
    reads: dict[int, Rate]
    events: float
    list_ms: float


class PlaneSize(NamedTuple):
    """The sizes of the benchmark."""

    planes: int
    seconds: float
    watchers: int
    objects: int
    wakes: int


def run(*, quick: bool, data: Path | None) -> BenchReport:
    size = PlaneSize(100, 1.0, 100, 1_000, 5) if quick else PlaneSize(1_000, 4.0, 1_000, 10_000, 20)
    plane_figures = _create_planes(size.planes)
    with _serve_plane() as (server, endpoint):
        say("measuring a plane of ours")
        our_figures = asyncio.run(_measure(endpoint, size))
        wake_ms = _wake_ms(server, endpoint, size.wakes)
    peer_figures, peer_ready_ms = _peer(size)
    return BenchReport(
        name="plane",
        how=_how(size, quick, peer_figures is not None),
        results=(
            *_planes(plane_figures, size, wake_ms, peer_ready_ms),
            *_rates(our_figures, peer_figures, size),
        ),
    )


def _how(size: PlaneSize, quick: bool, with_peer: bool) -> str:
    """A description of the measurement."""
    parts = [
        f"{size.planes} planes with CRDs and controllers; TLS, durable writes of 200-byte"
        f" ConfigMaps, {size.seconds:g} s each; server and load share"
        f" {os.cpu_count()} cores (load average {os.getloadavg()[0]:.1f})"
    ]
    if quick:
        parts.append("--quick shrank planes, watchers, objects and times by up to ten")
    if not with_peer:
        parts.append("no peer: build it with `make kube`")
    return "; ".join(parts)


def _planes(
    plane_figures: dict[str, float], size: PlaneSize, wake_ms: float, peer_ready_ms: float | None
) -> Iterator[Result]:
    """The results for planes."""
    yield more("planes made", "1/s", plane_figures["per_second"])
    peer = {"peer": peer_ready_ms, "peer_name": PEER} if peer_ready_ms is not None else {}
    yield less("plane ready, p50", "ms", plane_figures["p50_ms"], aim=at_most(10), **peer)  # type: ignore[arg-type]
    yield less("plane ready, p99", "ms", plane_figures["p99_ms"])
    suffix = f"at {size.planes:,}"
    yield less(f"idle plane awake, {suffix}", "KiB", plane_figures["awake_kib"], aim=at_most(256))
    yield less(f"idle plane asleep, {suffix}", "KiB", plane_figures["asleep_kib"], aim=at_most(256))
    yield less("cold wake, p50", "ms", wake_ms)


def _rates(our_figures: Figures, peer: Figures | None, size: PlaneSize) -> Iterator[Result]:
    """The results for requests."""
    name = PEER if peer is not None else None
    for operation, aim in (("writes", 3_000), ("reads", 6_000)):
        our_rates: dict[int, Rate] = getattr(our_figures, operation)
        peer_rates: dict[int, Rate] = getattr(peer, operation) if peer is not None else {}
        for clients, our_rate in our_rates.items():
            peer_rate = peer_rates.get(clients)
            label = f"{operation}, {clients} client{'s' if clients > 1 else ''}"
            yield more(
                label, "1/s", our_rate.per_second,
                peer=peer_rate and peer_rate.per_second, peer_name=name,
                aim=at_least(aim) if clients == _CLIENTS[-1] else None,
            )  # fmt: skip
            for field in ("p50_ms", "p99_ms"):
                yield less(
                    f"{label}, {field[:3]}", "ms", getattr(our_rate, field),
                    peer=peer_rate and getattr(peer_rate, field), peer_name=name,
                )  # fmt: skip
    events = peer.events if peer is not None else None
    yield more(
        f"events to {size.watchers:,} watchers",
        "1/s",
        our_figures.events,
        peer=events,
        peer_name=name,
    )
    listing = peer.list_ms if peer is not None else None
    yield less(f"list of {size.objects:,}", "ms", our_figures.list_ms, peer=listing, peer_name=name)


async def _measure(endpoint: LoadTarget, size: PlaneSize) -> Figures:
    """Measure an API server."""
    writes = {n: await load.rate(endpoint, n, size.seconds, write=True) for n in _CLIENTS}
    reads = {n: await load.rate(endpoint, n, size.seconds, write=False) for n in _CLIENTS}
    events = await load.fan_out(endpoint, size.watchers, 20)
    await load.fill(endpoint, size.objects)
    return Figures(writes, reads, events, await load.list_ms(endpoint))


# Ours.


def _start(*arguments: str) -> subprocess.Popen[str]:
    """Start the measured process."""
    command = [sys.executable, "-m", "bidplane.bench.support.plane_server", *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _answer(server: subprocess.Popen[str]) -> dict[str, Any]:
    """The next line of facts from the measured process."""
    assert server.stdout is not None
    line = server.stdout.readline()
    if not line:
        raise RuntimeError("the measured process ended by itself; its output is above")
    facts: dict[str, Any] = json.loads(line)
    return facts


def _create_planes(count: int) -> dict[str, float]:
    """Create that many planes in a child process; return its figures."""
    say(f"making {count} planes")
    with tempfile.TemporaryDirectory(prefix="bidplane-bench-") as folder:
        child = _start("many", folder, str(count))
        try:
            return _answer(child)
        finally:
            child.communicate()


@contextlib.contextmanager
def _serve_plane() -> Iterator[tuple[subprocess.Popen[str], LoadTarget]]:
    """Serve one plane in a child process."""
    with tempfile.TemporaryDirectory(prefix="bidplane-bench-") as folder:
        server = _start("serve", folder)
        try:
            facts = _answer(server)
            yield server, LoadTarget(facts["port"], facts["token"], "/planes/bench")
        finally:
            server.communicate()  # closes its input, which ends it


def _wake_ms(server: subprocess.Popen[str], endpoint: LoadTarget, times: int) -> float:
    """
    The median time to the first answer of a sleeping plane that holds all that was written before.
    """
    measured = []
    for _ in range(times):
        assert server.stdin is not None
        server.stdin.write("sleep\n")
        server.stdin.flush()
        if not _answer(server)["asleep"]:
            raise RuntimeError("the plane did not sleep")
        measured.append(asyncio.run(load.first_answer_ms(endpoint)))
    return sorted(measured)[len(measured) // 2]


# The peer.


def _peer(size: PlaneSize) -> tuple[Figures | None, float | None]:
    """
    The figures of a real control plane and its start time in ms; None without its binaries.

    The test kit is imported only here: nothing below the commands depends on it.
    """
    rig = importlib.import_module("bidplane.testing.rig")
    cluster = importlib.import_module("bidplane.testing.cluster")
    try:
        binaries = rig.find(["etcd", "kube-apiserver", "kube-controller-manager", "kubectl"])
    except rig.RigError:
        return None, None
    say(f"measuring {PEER}")
    begin = time.perf_counter()
    with cluster.Cluster(binaries, controllers=False, durable=True) as running:
        ready = (time.perf_counter() - begin) * 1e3
        endpoint = LoadTarget(int(running.url.rpartition(":")[2]), running.token)
        return asyncio.run(_measure(endpoint, size)), ready
