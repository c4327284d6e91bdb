"""
What a plane costs and carries, beside a real etcd and kube-apiserver.

Server and load share the machine. Our server and the peer's both sync every write to
disk before they acknowledge it.
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

from bidplane.bench import load
from bidplane.bench.load import Endpoint, Rate
from bidplane.bench.report import Report, Result, at_least, at_most, less, more, say

PEER = "etcd + kube-apiserver"
_CLIENTS = (1, 8, 32)


class Figures(NamedTuple):
    writes: dict[int, Rate]
    reads: dict[int, Rate]
    events: float
    list_ms: float


class Size(NamedTuple):
    planes: int
    seconds: float
    watchers: int
    objects: int
    wakes: int


def run(*, quick: bool, data: Path | None) -> Report:
    size = Size(100, 1.0, 100, 1_000, 5) if quick else Size(1_000, 4.0, 1_000, 10_000, 20)
    many = _many(size.planes)
    with _ours() as (server, endpoint):
        say("measuring a plane of ours")
        ours = asyncio.run(_measure(endpoint, size))
        wake = _wake(server, endpoint, size.wakes)
    peer, ready = _peer(size)
    return Report(
        name="plane",
        how=_how(size, quick, peer is not None),
        results=(*_planes(many, size, wake, ready), *_rates(ours, peer, size)),
    )


def _how(size: Size, quick: bool, with_peer: bool) -> str:
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
    many: dict[str, float], size: Size, wake: float, ready: float | None
) -> Iterator[Result]:
    yield more("planes made", "1/s", many["per_second"])
    peer = {"peer": ready, "peer_name": PEER} if ready is not None else {}
    yield less("plane ready, p50", "ms", many["p50_ms"], aim=at_most(10), **peer)  # type: ignore[arg-type]
    yield less("plane ready, p99", "ms", many["p99_ms"])
    at = f"at {size.planes:,}"
    yield less(f"idle plane awake, {at}", "KiB", many["awake_kib"], aim=at_most(256))
    yield less(f"idle plane asleep, {at}", "KiB", many["asleep_kib"], aim=at_most(256))
    yield less("cold wake, p50", "ms", wake)


def _rates(ours: Figures, peer: Figures | None, size: Size) -> Iterator[Result]:
    name = PEER if peer is not None else None
    for what, aim in (("writes", 3_000), ("reads", 6_000)):
        mine: dict[int, Rate] = getattr(ours, what)
        theirs: dict[int, Rate] = getattr(peer, what) if peer is not None else {}
        for clients, found in mine.items():
            other = theirs.get(clients)
            label = f"{what}, {clients} client{'s' if clients > 1 else ''}"
            yield more(
                label, "1/s", found.per_second, peer=other and other.per_second, peer_name=name,
                aim=at_least(aim) if clients == _CLIENTS[-1] else None,
            )  # fmt: skip
            for field in ("p50_ms", "p99_ms"):
                yield less(
                    f"{label}, {field[:3]}", "ms", getattr(found, field),
                    peer=other and getattr(other, field), peer_name=name,
                )  # fmt: skip
    events = peer.events if peer is not None else None
    yield more(
        f"events to {size.watchers:,} watchers", "1/s", ours.events, peer=events, peer_name=name
    )
    listing = peer.list_ms if peer is not None else None
    yield less(f"list of {size.objects:,}", "ms", ours.list_ms, peer=listing, peer_name=name)


async def _measure(endpoint: Endpoint, size: Size) -> Figures:
    writes = {n: await load.rate(endpoint, n, size.seconds, write=True) for n in _CLIENTS}
    reads = {n: await load.rate(endpoint, n, size.seconds, write=False) for n in _CLIENTS}
    events = await load.fan_out(endpoint, size.watchers, 20)
    await load.fill(endpoint, size.objects)
    return Figures(writes, reads, events, await load.list_ms(endpoint))


# Ours.


def _start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bidplane.bench.plane_server", *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _answer(server: subprocess.Popen[str]) -> dict[str, Any]:
    assert server.stdout is not None
    line = server.stdout.readline()
    if not line:
        raise RuntimeError("the measured process ended by itself; its words are above")
    facts: dict[str, Any] = json.loads(line)
    return facts


def _many(count: int) -> dict[str, float]:
    say(f"making {count} planes")
    with tempfile.TemporaryDirectory(prefix="bidplane-bench-") as folder:
        server = _start("many", folder, str(count))
        try:
            return _answer(server)
        finally:
            server.communicate()


@contextlib.contextmanager
def _ours() -> Iterator[tuple[subprocess.Popen[str], Endpoint]]:
    with tempfile.TemporaryDirectory(prefix="bidplane-bench-") as folder:
        server = _start("serve", folder)
        try:
            facts = _answer(server)
            yield server, Endpoint(facts["port"], facts["token"], "/planes/bench")
        finally:
            server.communicate()  # closes its input, which ends it


def _wake(server: subprocess.Popen[str], endpoint: Endpoint, times: int) -> float:
    """The first answer of a plane that slept; it holds all that was written before."""
    took = []
    for _ in range(times):
        assert server.stdin is not None
        server.stdin.write("sleep\n")
        server.stdin.flush()
        if not _answer(server)["asleep"]:
            raise RuntimeError("the plane did not sleep")
        took.append(asyncio.run(load.first_answer_ms(endpoint)))
    return sorted(took)[len(took) // 2]


# The peer.


def _peer(size: Size) -> tuple[Figures | None, float | None]:
    """
    A real control plane, if its binaries are there, and how long it took to be ready.

    It is a tool that happens to live in our test kit, found when it is needed: nothing
    below the commands depends on that kit.
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
        endpoint = Endpoint(int(running.url.rpartition(":")[2]), running.token)
        return asyncio.run(_measure(endpoint, size)), ready
