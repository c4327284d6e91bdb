"""When a lease is idle, and when it is not: what is not known is not idle, and nothing flaps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bidplane.core.leases.idle import FORGET_MILLISECONDS, Use, see, together

WINDOW = 300
STEP = 15_000


def watch(percents: list[float | None], *, step: int = STEP, begin: int = STEP) -> list[Use]:
    """What is known after each look."""
    use, found = Use(), []
    for n, percent in enumerate(percents):
        use = see(use, begin + n * step, percent, window_seconds=WINDOW)
        found.append(use)
    return found


def idle(percents: list[float | None], **more: int) -> list[bool]:
    return [bool(use.idle_since) for use in watch(percents, **more)]


def test_a_lease_that_does_nothing_is_idle_after_a_whole_window() -> None:
    seen = watch([0.0] * 22)
    assert [bool(use.idle_since) for use in seen] == [False] * 20 + [True] * 2
    assert seen[-1].idle_since == STEP, "since it was first seen to do nothing"


def test_work_ends_it_at_once_and_a_touch_does_not() -> None:
    rests: list[float | None] = [0.0] * 21
    assert idle([*rests, 100.0])[-1] is False
    assert idle([*rests, 30.0])[-1] is True, "less than two hundredths of the window"
    assert idle([*rests, 30.0, 30.0])[-1] is False


def test_a_touch_every_few_minutes_does_not_pass_for_use() -> None:
    touched: list[float | None] = [15.0 if n % 19 == 0 else 0.0 for n in range(80)]
    assert idle(touched)[-1] is True


def test_what_is_not_told_is_not_idle() -> None:
    assert idle([None] * 100) == [False] * 100
    assert idle([0.0] * 30 + [None] * 5)[-5:] == [True] * 4 + [False], "after a minute of silence"
    # What was known before is no part of what is known then.
    assert True not in idle([0.0] * 15 + [None] * 6 + [0.0] * 20)


def test_a_word_now_and_then_is_not_a_window() -> None:
    assert True not in idle([0.0] * 50, step=FORGET_MILLISECONDS + 1)


def test_a_clock_that_goes_back_changes_nothing() -> None:
    use = watch([0.0] * 21)[-1]
    assert see(use, STEP, 100.0, window_seconds=WINDOW) == use


def test_a_lease_works_while_any_of_its_devices_does() -> None:
    assert together([0.0, 80.0]) == 80.0
    assert together([0.0, None]) is None
    assert together([]) is None


loads = st.sampled_from([0.0, 0.0, 0.0, 0.5, 1.0, 1.9, 2.0, 5.0, 20.0, 100.0, None])


@given(st.lists(loads, max_size=120))
def test_it_never_flaps_and_never_guesses(percents: list[float | None]) -> None:
    seen = watch(percents)
    busy_at = 0  # when it was last known, or had to be thought, to be in use
    for n, use in enumerate(seen):
        at = STEP + n * STEP
        if not use.idle_since:
            busy_at = at if n and seen[n - 1].idle_since else busy_at
            continue
        if not (n and seen[n - 1].idle_since):
            assert at - busy_at >= 1000 * WINDOW, "a whole window lies before it"
            told = [p for at_, p in use.samples if at_ > at - 1000 * WINDOW]
            assert len(told) >= 1000 * WINDOW // FORGET_MILLISECONDS
        assert use.percent is not None
        assert use.percent < 2.0


@given(st.lists(st.sampled_from([2.0, 3.0, 50.0, None]), max_size=120))
def test_whoever_works_is_never_idle(percents: list[float | None]) -> None:
    assert True not in idle(percents)
