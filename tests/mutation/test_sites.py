"""Every mutant is valid Python, and differs from what it was drawn from."""

from __future__ import annotations

import ast
from pathlib import Path

from .sites import mutants

SOURCE = b'''
def price(bids: list[int], least: int = 3) -> int:
    """Return the least price."""
    if not bids or len(bids) < least:
        raise ValueError(f"{len(bids) + 1} bids")
    total = 0
    for bid in bids:
        total += bid * 2
    bids.clear()
    return total
'''


def changes() -> set[str]:
    return {mutant.describe(SOURCE).partition(": ")[2] for mutant in mutants(Path("p.py"), SOURCE)}


def test_decisions_are_changed_and_words_are_not() -> None:
    assert changes() == {
        "3 → 4",
        "not bids or len(bids) < least → (not (not bids or len(bids) < least))",
        "not bids or len(bids) < least → (not bids and len(bids) < least)",
        "not bids → (bids)",
        "len(bids) < least → (len(bids) <= least)",
        "0 → 1",
        "total += bid * 2 → pass",
        "bid * 2 → (bid // 2)",
        "2 → 3",
        "bids.clear() → pass",
    }


def test_every_mutant_is_another_valid_program() -> None:
    before = ast.dump(ast.parse(SOURCE))
    for mutant in mutants(Path("p.py"), SOURCE):
        assert ast.dump(ast.parse(mutant.apply(SOURCE))) != before
