"""Sizes of blocks that a pool may sell."""

from __future__ import annotations

import itertools
import re

import pytest

from bidplane.api.shape import LEAST_PART, PART_UNITS, parse_fraction, part_name, part_units
from bidplane.core.devices.chain import FRACTIONS, chain_problem


@pytest.mark.parametrize("sizes", [(8, 4, 2, 1), (3, 1), (1,)])
def test_a_chain_of_divisors_is_sold(sizes):
    assert chain_problem(sizes) is None


@pytest.mark.parametrize(
    ("sizes", "problem"),
    [
        ((), "names no size"),
        ((4, 0), "0 is no number of GPUs"),
        ((2, 4), r"\[4, 2\]|descend|larg"),
        ((8, 3, 1), "3"),
    ],
)
def test_any_other_chain_is_refused_with_the_size(sizes, problem):
    text = chain_problem(sizes)
    assert text is not None
    assert re.search(problem, text), text


@pytest.mark.parametrize(
    ("text", "share"), [("0.5", "0.5"), ("0.3", "0.3"), ("1/4", "0.25"), ("1/3", "0.333")]
)
def test_a_fraction_is_a_share_by_its_name(text, share):
    assert parse_fraction(text) == share
    assert part_units(share) == part_units(text)


def test_every_part_has_a_name_that_says_its_size():
    for units in range(LEAST_PART, PART_UNITS):
        assert part_units(part_name(units)) == units


@pytest.mark.parametrize("text", ["0", "1", "1.5", "-0.5", "half", "1/0", "", "0.009", "0.9999"])
def test_what_is_no_part_of_a_gpu_is_refused(text):
    with pytest.raises(ValueError, match=r"must be at least 0\.01 and less than 1"):
        parse_fraction(text)
    assert part_units(text) is None


def test_each_part_that_is_counted_divides_the_next_and_the_gpu():
    """Else what is left of a GPU could not be counted level by level."""
    units = [leaf.size for leaf in FRACTIONS]
    assert [PART_UNITS % size for size in units] == [0] * len(units)
    assert all(larger % size == 0 for larger, size in itertools.pairwise(units))
    assert [leaf.per_gpu for leaf in FRACTIONS] == [PART_UNITS // size for size in units]
