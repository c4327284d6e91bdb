"""A key is worked on by one worker at a time, is never lost, and its failures pass."""

import asyncio
import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidplane.errors import ApiError, Conflict, Unavailable
from bidplane.machinery.controller import Controller
from bidplane.sim.loop import run


class Work:
    """A reconciler that writes down when it ran for which key."""

    def __init__(self, **outcomes):
        self.ran = []
        self.outcomes = outcomes  # by key: a list of what to raise or return, then None

    async def reconcile(self, key):
        self.ran.append((key, round(asyncio.get_running_loop().time(), 3)))
        outcome = self.outcomes[key].pop(0) if self.outcomes.get(key) else None
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def times(self, key):
        return [time for ran, time in self.ran if ran == key]


def running(work, story, **options):
    """Run `story(controller)` beside the controller, in virtual time."""

    async def both():
        controller = Controller("test", work.reconcile, **options)
        task = asyncio.create_task(controller.run())
        try:
            await story(controller)
            assert not task.done(), "the controller ended by itself"
        finally:
            task.cancel()
            ended = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(ended[0], asyncio.CancelledError)
        return controller

    return run(both())


def test_a_key_added_often_before_it_is_worked_on_runs_once():
    work = Work()

    async def story(controller):
        for _ in range(5):
            controller.add("a")
        controller.add("b")
        await asyncio.sleep(1)

    running(work, story)
    assert sorted(work.ran) == [("a", 0), ("b", 0)]


def test_a_key_rests_after_a_look_and_what_changed_meanwhile_is_one_look():
    work = Work()

    async def story(controller):
        controller.add_after("a", 0.01)
        await asyncio.sleep(0.02)
        for _ in range(3):  # at 0.02, 0.03, 0.04
            controller.add_after("a", 0.01)
            controller.add_after("b", 0.01)
            await asyncio.sleep(0.01)
        await asyncio.sleep(1)
        controller.add_after("a", 0.01)  # it has rested long enough
        await asyncio.sleep(1)

    running(work, story, rest=0.5)
    assert work.times("a") == [0.01, 0.51, 1.06]
    assert work.times("b") == [0.03, 0.53]


def test_who_rested_is_forgotten():
    work = Work()

    async def story(controller):
        for number in range(3000):
            controller.add_after(str(number), 0.001)
            await asyncio.sleep(0.002)
        assert len(controller._rested) <= 1025

    running(work, story, rest=0.5)
    assert len(work.ran) == 3000


def test_a_key_added_while_it_is_worked_on_runs_again_after():
    ran = []

    async def reconcile(key):
        ran.append("begin")
        await asyncio.sleep(1)
        ran.append("end")

    slow = Work()
    slow.reconcile = reconcile

    async def story(controller):
        controller.add("a")
        await asyncio.sleep(0.5)
        controller.add("a")
        controller.add("a")
        await asyncio.sleep(10)

    running(slow, story)
    assert ran == ["begin", "end"] * 2


def test_what_a_reconciler_asks_for_is_when_it_looks_again():
    work = Work(a=[2.0, 3.0])

    async def story(controller):
        controller.add("a")
        await asyncio.sleep(100)

    running(work, story)
    assert work.times("a") == [0, 2, 5]


def test_of_several_waits_the_shortest_counts():
    work = Work()

    async def story(controller):
        controller.add_after("a", 5)
        controller.add_after("a", 2)
        controller.add_after("a", 9)
        await asyncio.sleep(100)

    running(work, story)
    assert work.times("a") == [2]


@pytest.mark.parametrize("error", [ValueError("bug"), Unavailable("down"), Conflict("late")])
def test_failures_back_off_and_are_forgotten_on_success(error):
    work = Work(a=[error] * 10)

    async def story(controller):
        controller.add("a")
        await asyncio.sleep(100)
        assert "failing 0" in repr(controller)
        work.outcomes["a"] = [error]
        controller.add("a")
        await asyncio.sleep(1)

    running(work, story)
    times = work.times("a")
    waits = [round(after - before, 2) for before, after in itertools.pairwise(times)]
    assert waits[:10] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
    assert waits[-1] == 0.05, "after a success the first wait is short again"


def test_a_key_that_fails_for_days_is_still_tried():
    """2.0**1024 is no float: a controller must not end of it, nor take its server along."""
    work = Work(a=[ApiError("no")] * 3000)

    async def story(controller):
        controller.add("a")
        controller.add("b")
        await asyncio.sleep(4 * 24 * 3600)

    running(work, story)
    assert len(work.times("a")) == 3001


def test_a_bug_is_logged_with_its_traceback_and_a_late_cache_is_not(logs):
    work = Work(a=[ValueError("bug")], b=[Conflict("late")] * 9, c=[Unavailable("down")] * 5)

    async def story(controller):
        for key in "abc":
            controller.add(key)
        await asyncio.sleep(100)

    running(work, story)
    assert [(entry["log_level"], entry["key"]) for entry in logs] == [
        ("error", "a"),
        ("warning", "c"),
        ("warning", "c"),
    ]
    assert isinstance(logs[0]["exc_info"], ValueError)


def test_one_keys_failure_does_not_stop_the_others():
    work = Work(a=[ValueError("bug")] * 100)

    async def story(controller):
        controller.add("a")
        await asyncio.sleep(1)
        controller.add("b")
        await asyncio.sleep(0.01)

    running(work, story, workers=1)
    assert work.times("b") == [1]


def test_a_cancelled_wait_inside_a_reconciler_does_not_cost_a_worker():
    work = Work(a=[asyncio.CancelledError()] * 5)

    async def story(controller):
        controller.add("a")
        await asyncio.sleep(100)
        controller.add("b")
        await asyncio.sleep(1)

    running(work, story, workers=1)
    assert len(work.times("a")) == 6
    assert work.times("b") == [100]


def test_a_controller_that_is_run_again_has_no_dead_timers():
    work = Work()

    async def story():
        controller = Controller("test", work.reconcile)
        for wait in (10, 20):
            controller.add_after("a", wait)
            task = asyncio.create_task(controller.run())
            await asyncio.sleep(1)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        task = asyncio.create_task(controller.run())
        controller.add_after("a", 30)
        await asyncio.sleep(31)
        task.cancel()

    run(story())
    assert work.times("a") == [32]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 3))
def test_no_key_runs_beside_itself_and_every_change_is_seen(seed, workers):
    """After the last `add` of a key a reconcile begins that succeeds: it saw the change."""
    dice = random.Random(seed)
    at_work, changed, last_seen = set(), {}, {}

    async def reconcile(key):
        assert key not in at_work
        at_work.add(key)
        assert len(at_work) <= workers
        read = changed[key]
        try:
            await asyncio.sleep(dice.choice([0, 0.01, 1]))
            if dice.random() < 0.3:
                raise dice.choice([ApiError, ValueError])("no")
        finally:
            at_work.remove(key)
        last_seen[key] = read
        return dice.choice([None, None, None, 0, 5.0])

    work = Work()
    work.reconcile = reconcile

    async def story(controller):
        for number in range(60):
            key = dice.choice("abcd")
            changed[key] = number
            if dice.random() < 0.8:
                controller.add(key)
            else:
                controller.add_after(key, dice.choice([0, 0.5, 3]))
            await asyncio.sleep(dice.choice([0, 0, 0.01, 0.5]))
        await asyncio.sleep(1000)

    running(work, story, workers=workers)
    assert last_seen == changed
