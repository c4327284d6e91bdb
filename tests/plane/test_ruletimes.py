"""Which parts of a rule are dates and durations, by the schema and the parsed rule."""

from __future__ import annotations

import pytest

from bidplane.core.cel import CelError
from bidplane.plane.admission.ruletimes import with_times

WHEN = {"type": "string", "format": "date-time"}
DAY = {"type": "string", "format": "date"}
SPAN = {"type": "string", "format": "duration"}
ROW = {"type": "object", "properties": {"when": WHEN, "name": {"type": "string"}}}
SCHEMA = {
    "type": "object",
    "properties": {
        "since": WHEN,
        "day": DAY,
        "span": SPAN,
        "name": {"type": "string"},
        "times": {"type": "array", "items": WHEN},
        "rows": {"type": "array", "items": ROW},
        "byName": {"type": "object", "additionalProperties": ROW},
        "my-date": WHEN,
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    },
}


@pytest.mark.parametrize(
    ("rule", "converted"),
    [
        ("self.since > now", "timestamp(self.since) > now"),
        ("self.day == self.since", "timestamp(self.day + 'T00:00:00Z') == timestamp(self.since)"),
        ("self.span < x", "duration(self.span) < x"),
        ("self . since == x", "timestamp(self . since) == x"),
        ("self.my__dash__date > x", "timestamp(self.my__dash__date) > x"),
        # A loop's variable has the schema of the list's entries.
        ("self.rows.all(r, r.when > x)", "self.rows.all(r, timestamp(r.when) > x)"),
        ("self.times.exists(t, t > x)", "self.times.exists(t, timestamp(t) > x)"),
        ("self.rows[0].when > x", "timestamp(self.rows[0].when) > x"),
        ("self.times[0] > x", "timestamp(self.times[0]) > x"),
        ("self.byName['a'].when > x", "timestamp(self.byName['a'].when) > x"),
        (
            "self.byName.all(k, self.byName[k].when > x)",
            "self.byName.all(k, timestamp(self.byName[k].when) > x)",
        ),
        (
            "self.times.filter(t, t > x).all(u, u < x)",
            "self.times.filter(t, timestamp(t) > x).all(u, timestamp(u) < x)",
        ),
        ("self.times.map(t, t)[0] == x", "self.times.map(t, timestamp(t))[0] == x"),
        (
            "cel.bind(r, self.rows[0], r.when > x)",
            "cel.bind(r, self.rows[0], timestamp(r.when) > x)",
        ),
        # A shadowed name is the inner variable.
        ("self.rows.all(self, self.when > x)", "self.rows.all(self, timestamp(self.when) > x)"),
        # One conversion inside another.
        (
            "self.times[self.times[0] > x ? 0 : 1] > x",
            "timestamp(self.times[timestamp(self.times[0]) > x ? 0 : 1]) > x",
        ),
        # Not converted.
        ("has(self.since)", "has(self.since)"),
        ("self.name == 'self.since'", "self.name == 'self.since'"),
        ("self.free.since == x", "self.free.since == x"),
        (
            "'é' + self.name != 'é' || self.since > x",
            "'é' + self.name != 'é' || timestamp(self.since) > x",
        ),
        # Parentheses that would be torn apart: a limit, and harmless.
        ("(self.rows[0]).when == x", "(self.rows[0]).when == x"),
    ],
)
def test_text_of_a_time_format_is_converted(rule, converted):
    rule, converted = (text.replace("now", "oldSelf.since") for text in (rule, converted))
    converted = converted.replace("> oldSelf.since", "> timestamp(oldSelf.since)")
    x = "timestamp('2020-01-01T00:00:00Z')"
    assert with_times(SCHEMA, rule.replace(" x", f" {x}")) == converted.replace(" x", f" {x}")


@pytest.mark.parametrize("rule", ["self.sinse > x", "self.rows.all(r, r.wen > x)"])
def test_a_misspelt_field_is_named(rule):
    with pytest.raises(CelError, match=r"undefined field '(sinse|wen)'"):
        with_times(SCHEMA, rule.replace(" x", " timestamp('2020-01-01T00:00:00Z')"))


def test_an_optional_old_value_is_converted_by_the_rule_itself():
    rule = "oldSelf.hasValue() && self > timestamp('2020-01-01T00:00:00Z')"
    assert with_times(WHEN, rule, optional_old=True) == rule.replace("self >", "timestamp(self) >")
