"""CEL: errors are errors, and nothing runs for ever."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidplane.core import cel


def _eval(source: str, returns: str = "", **variables: Any) -> Any:
    return cel.compile(source, tuple(variables), returns).evaluate(variables)


@pytest.mark.parametrize(
    ("source", "value", "said"),
    [
        ("self.a + 1", {"a": 1}, 2),
        ("self.?b.orValue(7)", {}, 7),
        ("self.isSorted()", [1, 2, 2], True),
        ("self.isSorted()", [2, 1], False),
        ("self.sum()", [1, 2], 3),
        ("self.max() - self.min()", [5, 1], 4),
        ("self.find('[0-9]+')", "ab12", "12"),
        ("cidr(self).containsCIDR('10.1.0.0/24')", "10.1.0.0/16", True),
        ("cidr(self).containsCIDR('10.2.0.0/24')", "10.1.0.0/16", False),
        ("cidr(self).containsCIDR(cidr('10.0.0.0/8'))", "10.1.0.0/16", False),
        ("cidr(self).containsIP('10.1.9.9')", "10.1.0.0/16", True),
        ("self.findAll('[0-9]')", "a1b2", ["1", "2"]),
        ("quantity(self).isGreaterThan(quantity('1Gi'))", "2Gi", True),
        ("quantity(self).add(quantity('500m')).sub(1).compareTo(quantity('1'))", "1500m", 0),
        ("quantity(self).asInteger()", "2k", 2000),
        ("isQuantity(self)", "two", False),
        ("cel.bind(x, self * 2, x + x)", 2, 8),
        ("self.exists(x, x > 1) || 1 / 0 == 1", [2], True),
    ],
)
def test_what_expressions_say(source: str, value: Any, said: Any) -> None:
    assert _eval(source, self=value) == said


def test_expressions_of_regular_expressions_are_linear_and_know_flags() -> None:
    program = cel.compile(
        "self.find('(a+)+b') == '' && self.findAll('(?i)A').size() == 50", ("self",)
    )
    assert program.evaluate({"self": "a" * 50})
    assert cel.compile("self.matches('^(?i)abc$')", ("self",)).evaluate({"self": "ABC"})


@pytest.mark.parametrize(
    ("source", "value", "words"),
    [
        ("self.nope", {}, "no such key: nope"),
        ("1 / self > 1", 0, "divide by zero"),
        ("quantity(self).asInteger() > 0", "x", "quantities must match"),
        ("self.find('(?=a)') == ''", "a", "error parsing regexp: invalid perl operator"),
        ("self", "text", "must evaluate to true or false"),
    ],
)
def test_a_failure_is_never_true(source: str, value: Any, words: str) -> None:
    program = cel.compile(source, ("self",))
    with pytest.raises(cel.CelError, match=words):
        program.evaluate({"self": value})


@pytest.mark.parametrize("source", ["self ==", "nope", "1 + 'a'", "'text'", "a" * 20_000])
def test_what_does_not_compile(source: str) -> None:
    with pytest.raises(cel.CelError):
        cel.compile(source, ("self",))


def test_loops_in_loops_are_bounded() -> None:
    deep = "self.all(x, self.all(y, self.all(z, true)))"
    assert _eval(deep, self=[1] * 10) is True
    with pytest.raises(cel.CelError, match="cost limit exceeded"):
        _eval(deep, self=[1] * 1000)
    # The library's own count of turns is a second bound, and fails closed as well.
    with pytest.raises(cel.CelError, match="budget"):
        _eval("self.all(x, x == 1)", self=[1] * 50_000)


def test_text_that_doubles_is_bounded() -> None:
    source = "size(b) > 0"
    for _ in range(20):
        source = f"cel.bind(b, b + b, {source})"
    with pytest.raises(cel.CelError, match="cost limit exceeded"):
        _eval(source.replace("b + b", "self + self", 0), self="x", b="x" * 100_000)


def test_a_literal_is_not_code() -> None:
    assert cel.compile("self == 'oldSelf.all(x, y)'", ("self",)).words == {"self"}


# The library ends a key at NUL, so that two such keys are one; it then fails, closed.
_KEYS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=3)


@given(st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
                    lambda inner: st.lists(inner, max_size=3)
                    | st.dictionaries(_KEYS, inner, max_size=3)))  # fmt: skip
def test_any_json_is_equal_to_itself(value: Any) -> None:
    assert _eval("self == self", "bool", self=value) is True
