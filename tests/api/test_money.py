"""Credits are written, kept and charged without losing a micro-credit."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidplane.api import agent, money

amounts = st.integers(min_value=0, max_value=10**12 * money.MICRO - 1)


@given(amounts)
def test_what_is_formatted_parses_to_the_same_amount(micro):
    assert money.parse_credits(money.format_credits(micro)) == micro


@given(st.integers(max_value=-1))
def test_a_debt_is_shown_with_a_sign_and_is_no_amount_to_pay(micro):
    shown = money.format_credits(micro)
    assert shown == "-" + money.format_credits(-micro)
    with pytest.raises(ValueError, match="not an amount of credits"):
        money.parse_credits(shown)


@given(st.from_regex(r"[0-9]{1,12}(\.[0-9]{1,6})?", fullmatch=True))
def test_parsing_is_exact(text):
    assert money.parse_credits(text) == Fraction(text) * money.MICRO


@given(st.text())
def test_any_text_is_an_amount_or_a_value_error(text):
    try:
        micro = money.parse_credits(text)
    except ValueError:
        return
    assert micro == Fraction(text.strip()) * money.MICRO


@pytest.mark.parametrize(
    "text",
    ["", " ", "-1", "+1", "1.", ".5", "1,5", "1e3", "0x1", "1_000", "1.0000001", "٣", "1.٥", "nan"],
)
def test_what_is_no_amount_is_refused(text):
    with pytest.raises(ValueError, match="not an amount of credits"):
        money.parse_credits(text)


@pytest.mark.parametrize(
    ("micro", "text"),
    [(0, "0.00"), (1, "0.000001"), (2_100_000, "2.10"), (100, "0.0001"), (-1_500_000, "-1.50")],
)
def test_how_amounts_look(micro, text):
    assert money.format_credits(micro) == text


@pytest.mark.parametrize("text", ["0", "0.000000", "1000000.000001"])
def test_prices_are_more_than_zero_and_not_absurd(text):
    with pytest.raises(ValueError, match="is not a price"):
        money.parse_price(text)


@pytest.mark.parametrize(("text", "price"), [("0.000001", 1), ("1000000", money.LARGEST_PRICE)])
def test_the_smallest_and_the_largest_price(text, price):
    assert money.parse_price(text) == price


@given(
    st.integers(1, money.LARGEST_PRICE),
    st.integers(1, 1024),
    st.integers(0, 10 * 365 * 24 * money.SECONDS_PER_HOUR),
)
def test_cost_is_the_exact_cost_rounded_up(price, gpus, seconds):
    exact = Fraction(price * gpus * seconds, money.SECONDS_PER_HOUR)
    assert exact <= money.cost(price, gpus, seconds) < exact + 1


def test_an_hour_of_one_gpu_costs_its_price():
    assert money.cost(2_100_000, 1, money.SECONDS_PER_HOUR) == 2_100_000


def test_the_largest_amount_is_told_in_the_refusal() -> None:
    assert money.parse_amount("1000000000") == money.LARGEST_AMOUNT
    with pytest.raises(ValueError, match=r"the largest amount is 1000000000\.00"):
        money.parse_amount("1000000000.000001")


@pytest.mark.parametrize("digits", [13, 20, 5000])
def test_the_largest_is_told_however_many_digits_a_typo_has(digits: int) -> None:
    with pytest.raises(ValueError, match=r"the largest amount is 1000000000\.00"):
        money.parse_amount("9" * digits)
    with pytest.raises(ValueError, match=r"the largest price is 1000000\.00"):
        money.parse_price("9" * digits)


def test_a_grant_is_bounded_as_a_product() -> None:
    assert agent.hourly_grant("1000000", 1000) == money.LARGEST_AMOUNT
    with pytest.raises(ValueError, match=r"largest hourly grant is 1000000000\.00"):
        agent.hourly_grant("1000001", 1000)
    assert agent.carry_over_cap("", money.LARGEST_AMOUNT) == money.LARGEST_AMOUNT
