"""Quotes: what a block of so many GPUs would cost now, told from the public prices alone."""

from __future__ import annotations

from typing import Any

import pytest

from bidplane.api.http.exchange import PoolPrice, Prices, Wallet
from bidplane.client.asking import quotes
from bidplane.errors import UserError

WALLET = Wallet(
    agent="mine", balance="10.00", held="0.00", accruing="0.00", available="10.00", state="Open"
)


def lot(pool: str, classes: dict[str, str], **more: Any) -> PoolPrice:
    fields = {"price": "1.00", "base": "0.50", "devices": 8, "leased": 0}
    return PoolPrice(pool=pool, classes=classes, **{**fields, **more})


def asked(*pools: PoolPrice, gpus: int, pool: str = "") -> list[tuple[str, int, str]]:
    answer = quotes(Prices(pools=list(pools), round=1), WALLET, gpus=gpus, pool=pool)
    return [(quote.pool, quote.sold_as, quote.cost_per_hour) for quote in answer]


H100 = lot("h100", {"8": "2.00", "4": "0.75", "2": "0.50", "1": "0.50"})
CARDS = lot("rtx/48Gi,4", {"1": "0.50"}, devices=2)  # two cards that share no link


def test_a_surplus_is_quoted_and_paid_for() -> None:
    assert asked(H100, gpus=3) == [("h100", 4, "3.00")]


def test_a_block_costs_what_one_of_its_size_does() -> None:
    assert asked(H100, gpus=8) == [("h100", 8, "16.00")]
    assert asked(H100, gpus=2) == [("h100", 2, "1.00")]


def test_gpus_that_are_not_linked_are_no_block() -> None:
    assert asked(CARDS, H100, gpus=2) == [("h100", 2, "1.00")]
    assert asked(CARDS, gpus=1, pool="rtx") == [("rtx/48Gi,4", 1, "0.50")]
    with pytest.raises(UserError, match="pool 'rtx' has no 2 GPUs in one link domain"):
        asked(CARDS, H100, gpus=2, pool="rtx")


def test_more_than_a_block_is_anywhere() -> None:
    fleet = lot("h100", H100.classes, devices=16)
    assert asked(fleet, H100, gpus=13) == [("h100", 13, "13.00")]


def test_before_the_first_round_only_the_posted_price_is_known() -> None:
    assert asked(lot("h100", {}), gpus=4) == [("h100", 4, "4.00")]


def test_what_is_on_a_node_that_takes_no_pod_is_not_quoted() -> None:
    """All of it leased, on a cordoned machine: there is no price at which one could be had."""
    away = lot("h100", {}, leased=8, withheld="8 of 8 H100 are on node n1, which is cordoned")
    with pytest.raises(UserError, match=r"one link domain now \(8 of 8 H100 are on node n1, which"):
        asked(away, gpus=4)
    assert asked(away, BOX, gpus=3) == [("l40s", 3, "1.80")]


def test_what_must_be_outbid_is_told() -> None:
    (four,) = quotes(Prices(pools=[H100], round=1), WALLET, gpus=4)
    (two,) = quotes(Prices(pools=[H100], round=1), WALLET, gpus=2)
    assert (four.wins_without_displacing, two.wins_without_displacing) == (False, True)
    assert two.wallet_seconds == 10 * 3600


BOX = lot("l40s", {"3": "0.60", "1": "0.50"}, chain=(3, 1), devices=6)


def test_a_pool_says_which_blocks_it_sells() -> None:
    assert asked(BOX, gpus=2) == [("l40s", 3, "1.80")]
    # Each pool by its own sizes; the cheapest for what is paid, surplus included.
    assert asked(BOX, H100, gpus=2) == [("h100", 2, "1.00"), ("l40s", 3, "1.80")]
    assert asked(BOX, H100, gpus=3) == [("l40s", 3, "1.80"), ("h100", 4, "3.00")]


def test_what_one_pool_sells_linked_is_not_quoted_scattered_by_another() -> None:
    assert asked(BOX, H100, gpus=4) == [("h100", 4, "3.00")]
    (four,) = quotes(Prices(pools=[BOX], round=1), WALLET, gpus=4)
    assert (four.sold_as, four.linked) == (4, False)
    (three,) = quotes(Prices(pools=[BOX], round=1), WALLET, gpus=3)
    assert (three.sold_as, three.linked) == (3, True)
