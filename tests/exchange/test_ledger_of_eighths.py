"""
A ledger of the version that sold eighths, and counted in 56ths of a GPU, goes on as it was.

`ledger-10.sql` has a half and an eighth of one GPU, won at 0.10 per GPU-hour, claimed at
1,000,002 s and billed once.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bidplane.api.bid import BidPhase
from bidplane.api.money import GPU_WEIGHT
from bidplane.core.devices.ranges import occupied
from bidplane.ledger import verify
from bidplane.ledger.rounds import explain_bid, find_round, replay
from bidplane.storage.sqlite import Database

from .market import Market
from .words import PRICE, bid, gpus, parted, pool

OLD = Path(__file__).parents[1] / "ledger" / "old" / "ledger-10.sql"
CLAIMED, LAST, WIN_PRICE = 1_000_002.0, 1_000_070.0, 100_000


@pytest.fixture
def market(tmp_path: Path) -> Market:
    path = tmp_path / "ledger.db"
    database = Database(path)
    database.execute(OLD.read_text())
    database.close()
    market = Market(path)
    market.now = LAST
    bids = bid("half", "trainer", 1, PRICE, share="1/2"), bid("eighth", "chat", 1, 2 * PRICE)
    market.change(pools=(parted(pool()),), devices=gpus(1), bids=bids)
    return market


def test_an_eighth_stays_an_eighth(market: Market) -> None:
    eighth, half = market.lease("eighth"), market.lease("half")
    assert (eighth.share, eighth.weight, half.weight) == (
        "1/8",
        GPU_WEIGHT // 8,
        GPU_WEIGHT // 2,
    )
    assert occupied(eighth.devices[0]) == (1200, 1500)
    assert occupied(half.devices[0]) == (0, 1200)
    with market.ledger.commit(round(1000 * market.now)) as commit:
        lot = commit.lot("h100")
    assert lot is not None
    assert lot.used == GPU_WEIGHT * 5 // 8


def test_its_rent_goes_on_to_the_second(market: Market) -> None:
    before = market.balance("chat") + market.lease("eighth").charged
    market.round()
    market.leave("eighth", after=30)
    seconds = round(market.now - CLAIMED)
    assert market.lease("eighth").charged == -(-WIN_PRICE * seconds // (8 * 3600))
    assert market.balance("chat") == before - market.lease("eighth").charged


def test_the_rest_of_its_gpu_is_sold_as_asked(market: Market) -> None:
    report = market.round(bid("b3", "chat", 1, PRICE, share="0.375"))
    assert report.bids["b3"].phase is BidPhase.WON
    assert market.lease("b3").devices[0].units == (1500, 2400)
    market.claim("b3")
    market.leave("half", "eighth", "b3")
    market.ledger.close()
    result = verify(market.path)
    assert result.is_sound, result.problem


def test_its_rounds_mean_the_same(market: Market) -> None:
    half, eighth = explain_bid(market.ledger, "half"), explain_bid(market.ledger, "eighth")
    assert half is not None
    assert eighth is not None
    assert "won 1/2 of a GPU in h100 at 0.10 per GPU-hour, 0.05 an hour" in half.sentence
    assert "won 1/8 of a GPU in h100 at 0.10 per GPU-hour, 0.0125 an hour" in eighth.sentence
    for number in range(1, market.ledger.last_round + 1):
        again = replay(find_round(market.ledger, number))
        assert again.is_of_earlier_rules
        assert set(again.differences) <= {"won", "lots"}  # they say other names: 0.5 for 1/2
