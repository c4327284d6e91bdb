"""Cron schedules, against a clock that is looked at every minute."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidplane.core.workloads import indexes
from bidplane.wire import cron

NOW = datetime(2026, 3, 10, 12, 34, 56, tzinfo=UTC).timestamp()


def field(low, high):
    number = st.integers(low, high).map(str)
    span = st.tuples(st.integers(low, high), st.integers(low, high)).map(
        lambda ends: f"{min(ends)}-{max(ends)}"
    )
    return st.one_of(st.just("*"), number, span, st.integers(2, 20).map("*/{}".format))


def fits(text, at):
    """By the definition, for one minute."""
    minute, hour, day, month, weekday = text.split()

    def within(part, value, low, high):
        span, _, step = part.partition("/")
        first, last = (low, high) if span == "*" else map(int, (span.split("-") * 2)[:2])
        return first <= value <= last and (value - first) % int(step or 1) == 0

    days = within(day, at.day, 1, 31), within(weekday, at.isoweekday() % 7, 0, 6)
    either = day[0] != "*" and weekday[0] != "*"
    return (
        within(minute, at.minute, 0, 59)
        and within(hour, at.hour, 0, 23)
        and within(month, at.month, 1, 12)
        and (any(days) if either else all(days))
    )


@given(
    st.tuples(field(0, 59), field(0, 23), field(1, 31), st.just("*"), field(0, 6)).map(" ".join),
    st.integers(0, 400 * 86400),
)
def test_the_next_time_is_the_first_minute_that_fits(text, offset):
    start = NOW + offset
    found = cron.parse(text).after(start)
    at = int(start) // 60 * 60
    for _ in range(3 * 24 * 60):  # three days, minute by minute
        at += 60
        if fits(text, datetime.fromtimestamp(at, UTC)):
            assert found == at
            return
    assert found is None or found > at


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("@hourly", "2026-03-10T13:00"),
        ("@daily", "2026-03-11T00:00"),
        ("0 9 * * mon-fri", "2026-03-11T09:00"),
        ("0 0 29 feb *", "2028-02-29T00:00"),
        ("30 2 * * 7", "2026-03-15T02:30"),
    ],
)
def test_words(text, expected):
    found = cron.parse(text).after(NOW)
    assert datetime.fromtimestamp(found, UTC).isoformat()[:16] == expected


def test_every():
    assert cron.parse("@every 1h30m").after(NOW) == int(NOW) + 5400


def test_a_day_that_is_never():
    assert cron.parse("0 0 31 2 *").after(NOW) is None


def test_an_hour_the_clock_skips_is_skipped():
    zone = "Europe/Berlin"  # 2026-03-29: 02:00 becomes 03:00
    before = datetime(2026, 3, 28, 12, tzinfo=ZoneInfo(zone)).timestamp()
    found = cron.parse("30 2 * * *").after(before, zone)
    assert datetime.fromtimestamp(found, ZoneInfo(zone)).isoformat()[:16] == "2026-03-30T02:30"


@pytest.mark.parametrize("text", ["", "* * * *", "60 * * * *", "a * * * *", "*/0 * * * *",
                                  "5-1 * * * *", "@every", "@every 0s", "@sometimes"])  # fmt: skip
def test_what_is_no_schedule_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        cron.parse(text)


@given(st.sets(st.integers(0, 60)))
def test_indexes_are_written_short_and_read_back(found):
    assert indexes.parse(indexes.write(found)) == found


def test_indexes_as_upstream_writes_them():
    assert indexes.write({0, 2, 3, 4, 6, 7}) == "0,2-4,6,7"
