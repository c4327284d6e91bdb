"""Scalars of built-in kinds: what is let in is what Go holds, and is written as Go writes it."""

from __future__ import annotations

import base64
import datetime
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bidplane.wire import quantity
from bidplane.wire.schema import formats, scalars
from bidplane.wire.schema.scalars import Mistyped
from bidplane.wire.schema.shapes import INT32, INT64

# Written from RFC 4648 and Go's documentation, not from the code: quanta of four, then padding.
CODE = "[A-Za-z0-9+/]"
BASE64 = re.compile(f"({CODE}{{4}})*({CODE}{{2}}==|{CODE}{{3}}=)?")


@given(st.binary(max_size=40), st.lists(st.integers(0, 60), max_size=4))
def test_base64_with_line_breaks_is_let_in_and_made_plain(
    content: bytes, breaks: list[int]
) -> None:
    plain = base64.b64encode(content).decode()
    text = plain
    for at in breaks:
        text = text[:at] + "\n" + text[at:]
    assert scalars.base64_text(text) == plain


@given(st.text("AQz9+/=!\n é", max_size=12))
@example("A===")
@example("AA=A")
@example("====")
def test_base64_is_let_in_exactly_when_it_is_whole(text: str) -> None:
    if BASE64.fullmatch(text.replace("\n", "")):
        assert scalars.base64_text(scalars.base64_text(text)) == scalars.base64_text(text)
    else:
        with pytest.raises(Mistyped, match=r"illegal base64 data at input byte \d+"):
            scalars.base64_text(text)


ZONES = st.integers(-14 * 60, 14 * 60).map(
    lambda m: datetime.timezone(datetime.timedelta(minutes=m))
)
MOMENTS = st.datetimes(datetime.datetime(2, 1, 1), datetime.datetime(9998, 12, 31), timezones=ZONES)


@given(MOMENTS)
def test_a_time_of_any_zone_is_kept_in_utc(moment: datetime.datetime) -> None:
    there = moment.astimezone(datetime.UTC).replace(tzinfo=None)
    text = moment.isoformat(timespec="microseconds")
    assert scalars.micro_time(text) == there.isoformat(timespec="microseconds") + "Z"
    second = there.isoformat(timespec="seconds") + "Z"
    assert scalars.time(text) == second
    assert scalars.time(second) == second
    assert formats.text_fits("date-time", text)


@given(st.text("0123456789-:TZ.+ ", max_size=26))
@example("2026-02-29T00:00:00Z")
@example("2026-01-01T00:00:60Z")
@example("2026-01-01T00:00:00Z\n")
@example("٢٠٢٦-01-01T00:00:00Z")
def test_a_time_is_let_in_only_if_others_can_read_it(text: str) -> None:
    try:
        kept = scalars.time(text)
    except Mistyped as error:
        kept, message = None, str(error)
    if kept is None:
        assert message.startswith(f'parsing time "{text}"')
    else:
        datetime.datetime.strptime(kept, "%Y-%m-%dT%H:%M:%SZ")


@given(st.integers() | st.floats(allow_nan=False) | st.booleans() | st.text(max_size=3))
@example(2**31)
@example(-(2**31))
@example(1.0)
@example(True)
def test_an_integer_is_let_in_exactly_when_its_type_holds_it(value: object) -> None:
    for limits, bits in ((INT32, 32), (INT64, 64)):
        if type(value) is int and -(1 << bits - 1) <= value < 1 << bits - 1:
            assert scalars.integer(value, limits) == value
        else:
            with pytest.raises(Mistyped, match=f"of type int{bits}"):
                scalars.integer(value, limits)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("1e3", "1e3"),
        ("1e-1000", "1e-9"),
        ("99999999Ei", "9223372036854775807"),
        ("-99999999Ei", "-9223372036854775807"),
        ("0.5", "500m"),
    ],
)
def test_a_quantity_is_capped_as_upstream_caps_it(text: str, kept: str) -> None:
    assert quantity.parse(quantity.canonical(text)) == quantity.parse(kept)


def test_a_power_past_all_use_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="suffix"):
        quantity.canonical("1e99999999999")
