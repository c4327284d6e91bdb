"""Sizes of blocks that a pool may sell."""

from __future__ import annotations

import re

import pytest

from bidplane.core.devices.chain import chain_problem


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
