"""
Owners who displace each other in turns never pay less than one who stays.

Both are played on the real engine, beside a rival whose standing bid sets the price, and are
compared by what all of them paid in all for the same hour of the same GPUs.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bidplane.api.lease import Phase
from bidplane.ledger import verify, wallets
from exchange.market import Market
from exchange.words import CREDIT, PRICE, agent, bid

HOUR = 1200
TURNS = 12
FUNDS = 10**8 * CREDIT


def stage(path: Path, *names: str) -> Market:
    market = Market(path)
    agents = tuple(msgspec.structs.replace(agent(n, refill=0), cap=10**18) for n in names)
    market.round(agents=(*agents, agent("rival", refill=1000)))
    with market.ledger.commit(round(market.now * 1000)) as commit:
        for a in agents:
            wallets.fund(commit, uid=a.uid, amount=FUNDS, key="start")
    return market


def paid(market: Market, *names: str) -> int:
    """What they have less than they began with, once nothing runs any more."""
    assert all(market.ledger.account(f"wallet/uid-{n}").held == 0 for n in names)  # type: ignore[union-attr]
    return sum(FUNDS - market.balance(name) for name in names)


def wait(market: Market, seconds: float) -> None:
    end = market.now + seconds
    while market.now < end:
        market.round(after=min(10.0, end - market.now))


def staying(path: Path, rival: int) -> float:
    """Return what one who stays pays for a second."""
    market = stage(path, "ann")
    market.round(bid("a0", "ann", 4, 1000 * PRICE), bid("r", "rival", 4, rival))
    market.claim("a0")
    began = market.now
    wait(market, HOUR)
    market.leave("a0")
    used = market.now - began
    return finish(market, "ann") / used


def taking_turns(path: Path, rival: int, *, every: float, claims_late: float) -> float:
    """Each displaces the other, `TURNS` times; return what a second of use costs them."""
    names = ("eve", "mallory")
    market = stage(path, *names)
    price = rival * 1.3
    market.round(bid("t0", names[0], 4, round(price)), bid("r", "rival", 4, rival))
    market.claim("t0")
    for turn in range(1, TURNS):
        wait(market, every)
        price *= 1.3
        market.round(bid(f"t{turn}", names[turn % 2], 4, round(price)))
        assert market.lease(f"t{turn - 1}").phase is Phase.DRAINING, "they do not get their turn"
        market.leave(f"t{turn - 1}", after=every % 30)
        market.round(after=claims_late)
        market.claim(f"t{turn}")
        assert market.lease(f"t{turn}").phase is Phase.ACTIVE
    wait(market, every)
    market.leave(f"t{TURNS - 1}")
    leases = [market.lease(f"t{turn}") for turn in range(TURNS)]
    used = sum(lease.released_at - lease.active_at for lease in leases) / 1000
    return finish(market, *names) / used


def finish(market: Market, *names: str) -> int:
    market.round(bids=())
    total = paid(market, *names)
    market.ledger.close()
    report = verify(market.path)
    assert report.is_sound, report.problem
    return total


@pytest.mark.parametrize(
    ("every", "claims_late"), [(11.0, 0.5), (61.0, 50.0), (91.0, 0.5), (301.0, 0.5)]
)
def test_a_pair_that_takes_turns_pays_no_less_than_one_who_stays(
    tmp_path: Path, every: float, claims_late: float
) -> None:
    rival = PRICE // 4
    one = staying(tmp_path / "staying.db", rival)
    pair = taking_turns(tmp_path / "turns.db", rival, every=every, claims_late=claims_late)
    print(f"a second of one who stays {one:.0f}, of a pair every {every:.0f} s {pair:.0f}")
    assert pair >= one > 0


def test_an_unclaimed_win_gives_way_to_a_higher_bid_at_once(tmp_path: Path) -> None:
    """It kept a bid of 20.00 off for a minute, for what its minimum costs."""
    market = stage(tmp_path / "ledger.db", "eve", "ann")
    market.round(bid("squat", "eve", 4, PRICE))
    market.round(bid("want", "ann", 4, 20 * PRICE))
    assert (market.lease("squat").phase, market.lease("squat").reason) == ("Released", "Outbid")
    assert market.lease("want").ready
    market.claim("want")
    assert market.lease("want").phase is Phase.ACTIVE
    assert market.balance("eve") == FUNDS, "it has used nothing, and owes nothing"
    market.leave("want")
    finish(market, "eve", "ann")


def test_an_unclaimed_win_stays_for_a_bid_that_does_not_outrank_it(tmp_path: Path) -> None:
    market = stage(tmp_path / "ledger.db", "eve", "ann")
    market.round(bid("first", "eve", 4, PRICE))
    market.round(bid("equal", "ann", 4, PRICE))
    assert market.lease("first").phase is Phase.PENDING
    market.claim("first")
    assert market.lease("first").phase is Phase.ACTIVE
    market.leave("first")


def test_whoever_outranks_a_win_whose_devices_drain_pays_back_what_it_paid(tmp_path: Path) -> None:
    """And then waits for the same devices; the first is paid once, and nobody twice."""
    market = stage(tmp_path / "ledger.db", "eve", "ann", "bob")
    market.round(bid("runs", "bob", 4, PRICE))
    market.claim("runs")
    wait(market, 120)
    market.round(bid("squat", "eve", 4, 2 * PRICE))
    owed = market.lease("squat").displacement
    assert market.lease("runs").phase is Phase.DRAINING
    assert owed == market.lease("runs").compensation > 0
    assert market.balance("eve") == FUNDS - owed
    market.round(bid("want", "ann", 4, 20 * PRICE))
    squat, want = market.lease("squat"), market.lease("want")
    assert (squat.phase, squat.compensation) == (Phase.RELEASED, owed)
    assert market.balance("eve") == FUNDS, "it got back what it had paid"
    assert want.displacement == owed
    assert (want.ready, want.waits_for) == (False, (market.lease("runs").id,))
    market.leave("runs")
    assert market.lease("want").ready
    market.claim("want")
    market.leave("want")
    finish(market, "eve", "ann", "bob")


def test_a_part_of_an_unclaimed_win_is_waited_for_no_longer_than_needed(tmp_path: Path) -> None:
    """Of four GPUs that were won, two are free and two drain: a bid for two has the free ones."""
    market = stage(tmp_path / "ledger.db", "eve", "ann", "bob")
    market.round(bid("runs", "bob", 2, PRICE))
    market.claim("runs")
    wait(market, 120)
    market.round(bid("squat", "eve", 4, 4 * PRICE))
    assert market.lease("squat").waits_for == (market.lease("runs").id,)
    market.round(bid("want", "ann", 2, 20 * PRICE))
    want = market.lease("want")
    drains = {device.name for device in market.lease("runs").devices}
    assert want.ready == drains.isdisjoint(device.name for device in want.devices)
    market.leave("runs")
    market.claim("want")
    market.leave("want")
    finish(market, "eve", "ann", "bob")
