"""A loop whose time jumps: as long as its work, in the order of its times, and never stuck."""

import asyncio
import time

import pytest

from bidplane.sim.loop import EPOCH, VirtualClock, run


def test_a_year_takes_no_time():
    async def story():
        clock = VirtualClock()
        assert clock.now() == EPOCH
        await clock.sleep(365 * 24 * 3600)
        return clock.now() - EPOCH

    began = time.monotonic()
    assert run(story()) == 365 * 24 * 3600
    assert time.monotonic() - began < 5


def test_things_happen_in_the_order_of_their_times():
    async def story():
        happened = []

        async def after(seconds):
            await asyncio.sleep(seconds)
            happened.append((seconds, asyncio.get_running_loop().time()))

        await asyncio.gather(*(after(seconds) for seconds in (3, 1, 86_401, 2, 0)))
        return happened

    assert run(story()) == [(0, 0), (1, 1), (2, 2), (3, 3), (86_401, 86_401)]


def test_time_stands_still_while_there_is_work():
    async def story():
        timer = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(1, timer.set_result, None)
        for _ in range(1000):
            await asyncio.sleep(0)
        before = asyncio.get_running_loop().time()
        await timer
        return before, asyncio.get_running_loop().time()

    assert run(story()) == (0, 1)


def test_timeouts_are_virtual():
    async def story():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1000):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert run(story()) == 1000


def test_small_steps_after_a_long_time_still_pass():
    """Far from zero a float has few digits left for fractions of a second."""

    async def story():
        await asyncio.sleep(3e9)
        for _ in range(100):
            await asyncio.sleep(1e-7)
        await asyncio.sleep(0.1)
        return asyncio.get_running_loop().time()

    assert run(story()) == pytest.approx(3e9 + 0.1, abs=1e-3)


def test_waiting_for_what_will_never_happen_is_an_error_not_a_hang():
    async def story():
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="the simulation is stuck"):
        run(story())


def test_two_runs_are_the_same():
    async def story():
        events = []

        async def worker(name):
            for step in range(5):
                await asyncio.sleep(step * 0.1)
                events.append((name, asyncio.get_running_loop().time()))

        await asyncio.gather(*map(worker, "abc"))
        return events

    assert run(story()) == run(story())


def test_it_gives_back_what_the_work_gives_and_raises_what_it_raises():
    async def good():
        return 42

    async def bad():
        raise KeyError("x")

    assert run(good()) == 42
    with pytest.raises(KeyError):
        run(bad())
