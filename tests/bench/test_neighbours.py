"""The figures of `bench neighbours`: against the quiet installation, and its attackers bounded."""

from __future__ import annotations

import asyncio
import time

from bidplane import bench
from bidplane.bench import neighbours
from bidplane.bench.neighbours import Feel
from bidplane.bench.support import attackers
from bidplane.bench.support.load import LoadTarget


def test_it_is_one_of_the_benchmarks() -> None:
    assert bench.find("neighbours") is neighbours.run


def test_the_aims_are_against_the_quiet_installation() -> None:
    before = Feel(get_ms=2.0, won_seconds=0.8, server_mib=100.0)
    good = Feel(get_ms=5.9, won_seconds=2.7, server_mib=120.0)
    bad = Feel(get_ms=6.1, won_seconds=2.9, server_mib=120.0)
    assert [result.met for result in neighbours._results("x", before, good)] == [True, True, True]
    assert [result.met for result in neighbours._results("x", before, bad)] == [False, False, True]
    assert {result.peer_name for result in neighbours._results("x", before, good)} == {"quiet"}


def test_an_attack_on_nothing_ends_by_itself() -> None:
    began = time.monotonic()
    for kind in attackers.KINDS:
        asyncio.run(attackers.attack(kind, LoadTarget(1, "token", "/planes/a"), 0.1, 3))
    assert time.monotonic() - began < 30
