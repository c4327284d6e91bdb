"""Recurrence: what is learned from the history of a service, and how it explains itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidplane.api.endpoint import EndpointPhase
from bidplane.api.times import rfc3339
from bidplane.core.gate.fleet import FleetEndpoint
from bidplane.core.minds.recurrence import (
    BIN_SECONDS,
    KEEP_BINS,
    PERIODS,
    UseHistory,
    _in_rhythm,
)
from bidplane.core.minds.tracking import EndpointUse, SavedUse

DAY = 144
FOUR = 24  # the bin that begins at 04:00


def history(days: list[int], bin: int = FOUR, until: int = 4) -> UseHistory:
    """Use that begins in a bin of these days, and lasts for three bins."""
    uses = UseHistory()
    used = {day * DAY + bin + i for day in days for i in range(3)}
    for b in range(until * DAY):
        uses.observe("s", b, b in used)
    return uses


def test_three_of_three_days_are_likely_and_said_so() -> None:
    uses = history([1, 2, 3])
    likely = uses.likelihood("s", 4 * DAY + FOUR)
    assert likely.probability > 0.6
    assert (likely.reason, likely.times) == ("started at 04:00 on the last 3 of 3 days", 3)
    assert uses.likelihood("s", 4 * DAY + FOUR - 1).probability < 0.1, "not ten minutes earlier"


def test_two_of_three_are_less_likely_and_one_is_chance() -> None:
    three, two, chance = (
        history(days).likelihood("s", 4 * DAY + FOUR) for days in ([1, 2, 3], [1, 3], [3])
    )
    assert three.probability > two.probability > chance.probability
    assert two.reason == "started at 04:00 on the last 2 of 3 days"
    assert chance.probability < 0.1


def test_a_day_on_which_it_was_in_use_already_says_nothing() -> None:
    uses = UseHistory()
    busy = set(range(2 * DAY, 2 * DAY + 100))  # in use since midnight
    used = {DAY + FOUR, 3 * DAY + FOUR} | busy
    for b in range(4 * DAY):
        uses.observe("s", b, b in used)
    assert uses.likelihood("s", 4 * DAY + FOUR).reason.endswith("the last 2 of 2 days")


def test_a_rhythm_of_hours() -> None:
    uses = UseHistory()
    for b in range(60):
        uses.observe("s", b, b % 6 == 2)
    likely = _in_rhythm(uses.services["s"], 62, PERIODS[1])
    assert 0.65 < likely.probability < 0.75, "an hour's rhythm is trusted less than a day's"
    assert likely.reason == "started at minute 20 on the last 10 of 10 hours"


def test_pauses_that_end_soon_keep_a_service_warm() -> None:
    uses = UseHistory()
    for b in range(200):
        uses.observe("bursty", b, b % 2 == 0)
        uses.observe("new", b, b == 0)
    likely = uses.likelihood("bursty", 200)
    assert likely.probability > 0.9
    assert uses.likelihood("new", 200).probability < 0.1
    assert uses.likelihood("unheard of", 200).probability == 0


def late_and_early(uses: UseHistory, times: int) -> int:
    """Have two services used every other hour, one from the beginning of its ten minutes."""
    for bin in range(times * 12):
        uses.observe("early", bin, bin % 12 == 0, silent=bin % 12 != 0)
        uses.observe("late", bin, bin % 12 == 0, silent=True)
    return times * 12


def test_silence_says_more_of_what_begins_on_time() -> None:
    uses = UseHistory()
    next_use = late_and_early(uses, 20)
    before = uses.likelihood("early", next_use)
    assert before.probability == uses.likelihood("late", next_use).probability > 0.5
    early = uses.likelihood("early", next_use, silent=True)
    late = uses.likelihood("late", next_use, silent=True)
    assert (early.late < 0.1, late.late > 0.9) == (True, True)
    assert early.probability < 0.7, "it would have come"
    assert 0.95 < late.probability <= before.probability, "it may still come"


def test_what_is_new_begins_as_the_others_do() -> None:
    alone, uses = UseHistory(), UseHistory()
    for bin in range(12 * 30):
        uses.observe("early", bin, bin % 12 == 0, silent=bin % 12 != 0)
    for history in (alone, uses):
        history.observe("new", 12 * 30 - 9, True)
        history.observe("new", 12 * 30, True, silent=None)  # when it began is not known
    assert alone.likelihood("new", 12 * 30 + 5).late == 0.9
    assert uses.likelihood("new", 12 * 30 + 5).late < 0.3


@given(st.sets(st.integers(0, 6 * DAY), max_size=60), st.integers(0, 2 * DAY))
def test_a_likelihood_is_a_probability_whatever_was(used: set[int], ahead: int) -> None:
    uses = UseHistory()
    for b in range(6 * DAY):
        uses.observe("s", b, b in used)
    likely = uses.likelihood("s", 6 * DAY + ahead)
    assert 0 <= likely.probability <= 1
    assert bool(used & set(range(6 * DAY))) or likely.probability == 0


def test_old_use_is_forgotten() -> None:
    uses = UseHistory()
    for b in range(KEEP_BINS + 10):
        uses.observe("s", b, b in (0, 5), silent=b == 5)
    service = uses.services["s"]
    assert service.bins == service.beginnings == service.late == set()


def endpoint(**fields: object) -> FleetEndpoint:
    given_fields = {"namespace": "agent-a", "name": "web", "uid": "u", "holds": 0, "in_flight": 0}
    phase = {"phase": EndpointPhase.READY, "awake": True}
    return FleetEndpoint(**{**given_fields, **phase, **fields})  # type: ignore[arg-type]


class TestTracking:
    def test_requests_in_flight_and_the_last_one_are_use(self) -> None:
        tracker, start = EndpointUse(), 100 * BIN_SECONDS
        tracker.observe([endpoint(in_flight=1)], start)
        assert tracker.likely([endpoint(in_flight=1)], start)["u"].reason == "it is in use"
        last = rfc3339(start + BIN_SECONDS + 5)
        assert tracker.observe([endpoint(last_request=last)], start + BIN_SECONDS + 30)
        assert tracker.observe([endpoint(last_request=last)], start + 3 * BIN_SECONDS)
        assert tracker.saved()["u"] == SavedUse(first=100, until=103, bins=(100, 101))

    def test_silence_after_use_is_told_from_use_that_goes_on(self) -> None:
        tracker, start = EndpointUse(), 100 * BIN_SECONDS
        for life in range(0, 40, 2):  # use for a bin, then silence for one
            tracker.observe([endpoint(in_flight=1)], start + life * BIN_SECONDS)
            tracker.observe([endpoint()], start + (life + 1) * BIN_SECONDS + 90)
        now = start + 41 * BIN_SECONDS
        tracker.observe([endpoint(in_flight=1)], now - BIN_SECONDS)
        tracker.observe([endpoint()], now + 30)
        assert tracker.likely([endpoint()], now + 30)["u"].reason == "it is in use"
        tracker.observe([endpoint()], now + 60)
        likely = tracker.likely([endpoint()], now + 60)["u"]
        assert likely.reason == "0 of its 20 pauses of 1 minutes ended soon"
        assert likely.probability < 0.1

    def test_a_restart_forgets_no_rhythm(self) -> None:
        tracker = EndpointUse()
        for b in range(4 * DAY):
            queue = 1 if b % DAY == FOUR and b > DAY else 0
            tracker.observe([endpoint(in_flight=queue)], b * BIN_SECONDS)
        again = EndpointUse(tracker.saved())
        moment = (4 * DAY + FOUR) * BIN_SECONDS - 30
        expected = tracker.likely([endpoint()], moment)
        assert expected["u"].reason == "started at 04:00 on the last 3 of 3 days"
        assert again.likely([endpoint()], moment) == expected

    def test_a_restart_knows_who_comes_late(self) -> None:
        tracker, at = EndpointUse(), 0
        for b in range(12 * 10):
            at = b * BIN_SECONDS
            for second in (0, 60, 300):
                busy = int(b % 12 == 0 and second == 300)
                tracker.observe([endpoint(in_flight=busy)], at + second)
        again = EndpointUse(tracker.saved())
        moment = at + 6 * BIN_SECONDS
        (likely,) = tracker.likely([endpoint()], moment).values()
        assert likely.late > 0.9
        assert again.likely([endpoint()], moment)["u"].late == likely.late
        older = {key: SavedUse(first=use.first, until=use.until, bins=use.bins)
                 for key, use in tracker.saved().items()}  # fmt: skip
        assert EndpointUse(older).likely([endpoint()], moment)["u"].late == 0.9

    @pytest.mark.parametrize("cold", [0.0, 120.0])
    def test_it_looks_ahead_by_a_cold_start(self, cold: float) -> None:
        tracker = EndpointUse()
        for b in range(4 * DAY):
            tracker.observe([endpoint(in_flight=int(b % DAY == FOUR))], b * BIN_SECONDS)
        service = endpoint(cold_start_seconds=cold)
        begins = (4 * DAY + FOUR) * BIN_SECONDS - 30 - cold
        assert tracker.likely([service], begins - 1)["u"].probability < 0.1
        likely = tracker.likely([service], begins)["u"]
        assert (likely.times, likely.is_ahead) == (4, True)
        late = tracker.likely([service], begins + 60 + cold)["u"]
        assert (late.times, late.is_ahead) == (4, False)
