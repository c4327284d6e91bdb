"""The rows of wakes in `bidplane bench activator`: of real wakes, in their order of time."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from bidplane.bench import activator, coldstart
from bidplane.bench.support import proxies

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def test_the_own_part_of_a_wake_is_between_the_write_and_the_answer(tmp_path: Path) -> None:
    with (
        proxies.listening_module("bidplane.bench.support.http_load") as (backend, _),
        activator._ours(backend, tmp_path / "wakes") as proxy,
    ):
        times = activator._own_ms(proxy, tmp_path / "wakes", 5)
    assert len(times) == 5
    assert times == sorted(times)
    assert all(0 < time < 30_000 for time in times)
    noted = (tmp_path / "wakes").read_text().splitlines()
    assert [line.split()[0] for line in noted] == [f"wakes-{number}" for number in range(5)]


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="there is no bubblewrap")
def test_a_cold_start_is_of_a_real_pod() -> None:
    (start,) = asyncio.run(coldstart._measure(1, 5))
    assert 0 < start.process < start.listening < start.answered < 60_000
