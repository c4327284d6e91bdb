"""
A quiet agent's figures while another one attacks: GET and bid → won, before and meanwhile.

A real installation (server, exchange and node as processes), two agents. The attacker is a process
of its own, bounded in number and time. The peer is the same installation while nobody attacks.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from bidplane.api.kinds import POD
from bidplane.bench.agents import NAMESPACE, ROUND_SECONDS, BenchInstallation, percentile, time_pod
from bidplane.bench.report import BenchReport, Result, at_most, less, ratio_at_least, say
from bidplane.bench.support import load
from bidplane.bench.support.attackers import KINDS
from bidplane.bench.support.load import LoadConnection, LoadTarget

MOST_TIMES = 3.0  # what a neighbour may raise a p99 by
MOST_ROUNDS = 2
_NODES = 2
_MIB = 2**20
_GET = f"{load.MAPS}/kube-root-ca.crt"
_WARM_SECONDS = 0.5


class NeighboursSize(NamedTuple):
    objects: int  # in the attacker's plane
    bids: int
    seconds: float  # of GETs, in each state
    pods: int  # timed from create to bound, in each state


class Feel(NamedTuple):
    get_ms: float  # p99
    won_seconds: float  # the longest
    server_mib: float


def run(*, quick: bool, data: Path | None) -> BenchReport:
    size = NeighboursSize(2000, 200, 1.0, 1) if quick else NeighboursSize(40_000, 10_000, 10.0, 5)
    with tempfile.TemporaryDirectory(prefix="bidplane-bench-") as folder:
        results = asyncio.run(_measure(Path(folder), size))
    how = (
        f"one attacker with {size.objects:,} ConfigMaps and {size.bids:,} standing bids beside one"
        f" quiet agent, {_NODES} simulated nodes, a round each second; attacker, neighbour and"
        f" installation on the same {os.cpu_count()} cores (load average {os.getloadavg()[0]:.1f})"
    )
    if quick:
        how += "; --quick: 2,000 objects instead of 40,000, 200 bids instead of 10,000, one pod"
    return BenchReport(name="neighbours", how=how, results=tuple(results))


async def _measure(folder: Path, size: NeighboursSize) -> list[Result]:
    place = BenchInstallation(folder, _NODES)
    await place.start()
    try:
        await place.agents_up_to(2)
        attacker, quiet = place.names
        say(f"filling the attacker's plane with {size.objects} objects")
        await load.fill(_endpoint(place, attacker), size.objects)
        before = await _feel(place, quiet, size, "quiet")
        results: list[Result] = []
        for kind in KINDS:
            say(kind)
            # Just before: other programs of this machine are felt in both.
            before = before._replace(get_ms=await _get_ms(place, quiet, size.seconds))
            under = await _attacked(place, attacker, quiet, size, kind)
            results += _results(kind, before, under)
        return results
    finally:
        await place.stop()


def _results(kind: str, before: Feel, under: Feel) -> list[Result]:
    won = at_most(round(before.won_seconds + MOST_ROUNDS * ROUND_SECONDS, 2))
    get = ratio_at_least(round(1 / MOST_TIMES, 3))
    figures = (
        ("GET p99", "ms", under.get_ms, before.get_ms, get),
        ("bid → won", "s", under.won_seconds, before.won_seconds, won),
        ("server's memory", "MiB", under.server_mib, before.server_mib, None),
    )
    return [
        less(f"{name}, {kind}", unit, ours, peer=peer, peer_name="quiet", aim=aim)
        for name, unit, ours, peer, aim in figures
    ]


async def _attacked(
    place: BenchInstallation, attacker: str, quiet: str, size: NeighboursSize, kind: str
) -> Feel:
    endpoint = _endpoint(place, attacker)
    seconds = size.seconds + size.pods * 4 * ROUND_SECONDS
    if kind == "standing bids":
        seconds = max(seconds, size.bids / 200)
    process = await asyncio.to_thread(
        subprocess.Popen,
        [
            sys.executable,
            "-m",
            "bidplane.bench.support.attackers",
            *(kind, str(seconds), str(endpoint.port), attacker, str(size.bids)),
        ],
        stdin=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write(endpoint.token + "\n")
    process.stdin.close()
    try:
        await asyncio.sleep(_WARM_SECONDS)
        if kind == "standing bids":  # what stands is what is felt, not its creation
            await asyncio.to_thread(process.wait, seconds + 30)
        return await _feel(place, quiet, size, kind)
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, 30)


async def _get_ms(place: BenchInstallation, quiet: str, seconds: float) -> float:
    """The p99 of one GET after the other."""
    connection = LoadConnection(_endpoint(place, quiet))
    await connection.open()
    took: list[float] = []
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        code, _ = await connection.call("GET", _GET)
        if code != 200:
            raise RuntimeError(f"the neighbour was answered {code}")
        took.append((time.perf_counter() - began) * 1000)
    await connection.close()
    return percentile(took, 0.99)


async def _feel(place: BenchInstallation, quiet: str, size: NeighboursSize, state: str) -> Feel:
    get_ms = await _get_ms(place, quiet, size.seconds)
    memory = place.memory()["server"] / _MIB
    won: list[float] = []
    for number in range(size.pods):
        name = f"{''.join(c for c in state.lower() if c.isalnum())}-{number}"
        won.append((await time_pod(place, quiet, name, price="1.00")).bound)
        await place.client(quiet).delete(POD, name, NAMESPACE, grace_seconds=0)
    return Feel(get_ms, max(won), memory)


def _endpoint(place: BenchInstallation, agent: str) -> LoadTarget:
    return LoadTarget(place.port, place.tokens[agent], f"/planes/{agent}")
