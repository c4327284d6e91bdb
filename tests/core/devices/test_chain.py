"""Sizes of blocks that a pool may sell."""

from __future__ import annotations

import re

import pytest

from bidplane.core.devices.chain import chain_problem, fraction_share


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
    ("text", "share"), [("0.5", "1/2"), ("0.3", "1/2"), ("1/4", "1/4"), ("0.01", "1/8")]
)
def test_a_fraction_is_rounded_up_to_a_share(text, share):
    assert fraction_share(text) == share


@pytest.mark.parametrize("text", ["0", "1", "1.5", "-0.5", "half", "1/0", ""])
def test_what_is_no_fraction_of_a_gpu_is_refused(text):
    with pytest.raises(ValueError, match="is not a fraction of a GPU"):
        fraction_share(text)
    with pytest.raises(ValueError, match="ask for 1 GPU, or for at most half"):
        fraction_share("0.51")
