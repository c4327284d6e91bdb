"""Why a pod waits, as a program reads it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidplane.api.bid import BidReason
from bidplane.api.money import format_credits, parse_credits
from bidplane.api.reading import Bid
from bidplane.core.bidding import pending
from bidplane.core.market.clearing.preemption import age
from bidplane.core.market.model import ONE
from core.structs import as_bid


def bid(offer: str = "1.00", **status: Any) -> Bid:
    status = {"phase": "Waiting", "reason": "Outbid", "message": "words", **status}
    return as_bid({"metadata": {}, "spec": {"gpus": 2, "maxPrice": offer}, "status": status})


def explain(reason: str, offer: str = "1.00", waited: float = 0, **status: Any) -> dict[str, Any]:
    return pending.explanation(reason, "words", bid(offer, **status), now=waited, since=0)


def test_outbid_says_the_price_the_wait_and_what_to_do() -> None:
    said = explain("Outbid", priceToWin="1.01", wallet="41.00")
    assert (said["priceToWinNow"], said["wallet"]) == ("1.01", "41.00")
    assert said["expectedWaitSeconds"] > 0
    assert said["remedies"][0] == {
        "action": "raiseMaxPrice",
        "annotation": "bidplane.dev/max-price",
        "value": "1.01",
    }


def test_what_age_cannot_bridge_has_no_expected_wait() -> None:
    assert explain("Outbid", priceToWin="900.00")["expectedWaitSeconds"] is None
    assert explain("NoFreeBlock")["priceToWinNow"] is None


def test_a_wallet_too_small_says_what_an_hour_costs() -> None:
    said = explain("WalletTooSmall", offer="3.00", wallet="0.10")
    assert said["remedies"][0] == {"action": "fundWallet", "has": "0.10", "costPerHour": "6.00"}


@pytest.mark.parametrize("reason", [*map(str, BidReason), "BadAsk", "AgentSuspended", "Won"])
def test_nobody_is_told_to_ask_for_fewer_than_one_gpu(reason: str) -> None:
    fewer = {"action": "askForFewerGPUs", "now": 2}
    alone = as_bid({"metadata": {}, "spec": {"gpus": 1, "maxPrice": "1.00"}})
    remedies = pending.explanation(reason, "words", alone, now=0, since=0)["remedies"]
    assert remedies
    assert "askForFewerGPUs" not in [remedy["action"] for remedy in remedies]
    assert (fewer in explain(reason)["remedies"]) == (
        reason
        in (
            "Outbid",
            "BelowReserve",
            "NoFreeBlock",
            "WalletTooSmall",
            "LargerThanEveryDomain",
            "NoMachineHasAll",
        )
    )


@pytest.mark.parametrize("reason", [*map(str, BidReason), "BadAsk", "AgentSuspended", "Won"])
def test_every_reason_has_a_remedy(reason: str) -> None:
    assert explain(reason)["remedies"]


@given(
    st.integers(10_000, 10**9),
    st.integers(10_000, 10**9),
    st.integers(0, 20_000),
)
def test_after_the_expected_wait_the_bid_ranks_high_enough(
    offer: int, to_win: int, waited: int
) -> None:
    said = explain("Outbid", format_credits(offer), waited, priceToWin=format_credits(to_win))
    wait = said["expectedWaitSeconds"]
    if wait is not None:
        now = ONE + age(waited - waited % 60)
        then = ONE + age(waited + wait)
        assert offer * then >= to_win * now


def test_a_price_that_trembles_is_not_news_and_one_that_moves_is() -> None:
    before = explain("Outbid", offer="0.10", priceToWin="2.00", wallet="10.00")
    assert not pending.differs(
        explain("Outbid", offer="0.10", priceToWin="2.05", wallet="10.20"), before
    )
    assert pending.differs(
        explain("Outbid", offer="0.10", priceToWin="2.20", wallet="10.00"), before
    )
    assert pending.differs(
        explain("Outbid", offer="0.10", priceToWin="2.00", wallet="5.00"), before
    )
    assert pending.differs(explain("NoFreeBlock", wallet="10.00"), before)
    assert pending.differs(before, None)
    assert parse_credits(before["wallet"])
