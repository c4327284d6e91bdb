"""Times as Kubernetes writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidplane.api.times import parse_rfc3339, rfc3339, rfc3339_micro

seconds = st.integers(0, 4_000_000_000)


@given(seconds)
def test_whole_seconds_come_back(moment):
    assert parse_rfc3339(rfc3339(moment)) == moment


@given(seconds, st.integers(0, 999_999))
def test_micro_times_come_back_to_the_microsecond(moment, micro):
    written = rfc3339_micro(moment + micro / 1e6)
    assert parse_rfc3339(written) == pytest.approx(moment + micro / 1e6, abs=1e-6)


def test_a_time_is_never_later_than_what_it_is_made_from():
    assert rfc3339(1.999) == "1970-01-01T00:00:01Z"


def test_other_zones_are_read():
    assert parse_rfc3339("1970-01-01T01:00:00+01:00") == 0


@pytest.mark.parametrize("text", ["", "soon", "2026-13-01T00:00:00Z"])
def test_what_is_no_time_is_a_value_error(text):
    with pytest.raises(ValueError, match=r".+"):
        parse_rfc3339(text)
