"""
A budget is never exceeded: not by one lease or several, not by rent, notice, minimum or what is
owed for displacing; and what it does not cover is told.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidplane.api.agent import Strategy
from bidplane.api.lease import Phase
from bidplane.api.money import GPU_WEIGHT, format_credits
from bidplane.core.bidding.pacing import Pace
from bidplane.core.bidding.strategy import StrategyInput, offer
from bidplane.exchange.instantsales import NoSale
from bidplane.exchange.snapshot import BidView, bid_view
from bidplane.ledger import budgets, verify
from bidplane.ledger.records import wallet_of

from .market import Market
from .words import CREDIT, PRICE, agent, bid, gpus, pool

# PRICE is a milli-credit a second for each GPU; a hold is a minute of it.
MINUTE = 60_000
WORK = "train"


def limited(
    uid: str, name: str, count: int, budget: int, price: int = PRICE, **more: Any
) -> BidView:
    made = bid(uid, name, count, price, created=more.pop("created", 0))
    return msgspec.structs.replace(made, budget=budget, work=WORK, **more)


def used(market: Market, name: str = "trainer") -> budgets.Spent:
    with market.ledger.commit(round(market.now * 1000)) as commit:
        return budgets.spent(commit, wallet_of(f"uid-{name}"), WORK)


def test_a_lease_ends_with_notice_before_its_budget_does(market: Market) -> None:
    budget = 5 * MINUTE
    agents = (agent("trainer", refill=1000), agent("chat", refill=1000))
    market.round(agents=agents, devices=gpus(1))
    market.round(limited("b1", "trainer", 1, budget))
    market.claim("b1")
    # As dear as it bids: a rival that offers just as much waits beside it.
    market.round(bid("r", "chat", 1, PRICE))
    for _ in range(400):
        market.round()
        now = used(market)
        assert now.charged + now.held <= budget
    lease = market.lease("b1")
    assert (lease.phase, lease.reason) == (Phase.DRAINING, "BudgetSpent")
    market.leave("b1")
    # Used up: what is left is less than a notice, and a round that is late, cost.
    assert budget - 32_000 - 1000 <= market.lease("b1").charged <= budget


def test_what_it_spent_before_counts(market: Market) -> None:
    market.round(limited("b1", "trainer", 1, 2 * MINUTE, PRICE))
    market.claim("b1")
    market.leave("b1", after=30)
    spent = used(market).charged
    assert spent > 0
    left = 2 * MINUTE - spent
    report = market.round(limited("b2", "trainer", 2, 2 * MINUTE))
    status = report.bids["b2"]
    assert (status.phase, status.reason) == ("Waiting", "BudgetSpent")
    assert status.message == (
        f"its budget has {format_credits(left)} left, and at its price it must hold 0.12;"
        " raise the budget, or bid less"
    )
    assert (status.spent, status.ran_seconds) == (format_credits(spent), 0)
    less = msgspec.structs.replace(market.world.bids[-1], price=PRICE // 2)
    report = market.round(bids=(less,))
    assert report.bids["b2"].phase == "Won"


def test_bids_of_one_work_share_it_the_earlier_first(market: Market) -> None:
    report = market.round(
        limited("late", "trainer", 1, 100_000, created=2),
        limited("early", "trainer", 1, 100_000, created=1),
        limited("other", "chat", 1, 100_000, created=3),  # another agent's has the same name
    )
    phases = {uid: status.phase for uid, status in report.bids.items()}
    assert phases == {"early": "Won", "late": "Waiting", "other": "Won"}
    # Nor in the next round: what the first holds may still be spent.
    assert market.round().bids["late"].reason == "BudgetSpent"
    assert market.leave("early").bids["late"].phase == "Won", "it was given back unused"


def test_without_a_budget_nothing_is_limited(market: Market) -> None:
    market.round(bid("b1", "trainer", 1, PRICE))
    assert market.lease("b1").budget == 0
    assert market.world.bids[0].work == ""


def test_the_float_keeps_to_it_too(market: Market) -> None:
    devices = tuple(d for n in range(5) for d in gpus(8, node=f"n{n}"))
    floating = msgspec.structs.replace(pool(), float_percent=5)
    market.round(pools=(floating,), devices=devices)
    asked = limited("b1", "trainer", 1, MINUTE - 1, instant=True)
    head = market.ledger.head
    no = market.engine.desk.serve(asked, market.world.agents[0], now=round(market.now * 1000))
    assert isinstance(no, NoSale)
    assert (no.reason, market.ledger.head) == ("BudgetSpent", head)
    asked = msgspec.structs.replace(asked, budget=MINUTE)
    market.engine.desk.serve(asked, market.world.agents[0], now=round(market.now * 1000))
    assert market.lease("b1").budget == MINUTE


@pytest.mark.parametrize("text", ["0", "-1", "much"])
def test_a_budget_that_is_none_is_refused(text: str) -> None:
    found = bid_view(
        {
            "metadata": {
                "uid": "u",
                "name": "b",
                "namespace": "agent-a",
                "labels": {"bidplane.dev/agent": "a"},
            },
            "spec": {"gpus": 1, "maxPrice": "1", "budget": text},
        }
    )
    assert found is not None
    assert found.bad == "BadBid"
    assert repr(text) in found.problem


# Whatever prices do


class Paced:
    """An agent that bids by the strategy, in a market that a test moves."""

    def __init__(self, market: Market, budget: int, *, hours: float, work: int) -> None:
        self.market, self.budget, self.work = market, budget, work
        self.began = round(market.now * 1000)
        self.deadline = self.began + int(hours * 3_600_000)
        self.pace, self.number, self.price = Pace(), 0, 0
        market.change(agents=(agent("trainer", refill=10**4), agent("chat", refill=10**4)))

    @property
    def uid(self) -> str:
        return f"b{self.number}"

    @property
    def is_running(self) -> bool:
        lease = self.market.ledger.lease_of_bid(self.uid)
        return lease is not None and lease.phase is not Phase.RELEASED

    def look(self) -> None:
        """What the scheduler does: bid anew what the strategy says; and once evicted, again."""
        known = used(self.market)
        if self.is_running:
            return
        if self.market.ledger.lease_of_bid(self.uid) is not None:
            self.number += 1
        wish = StrategyInput(
            value=10 * PRICE,
            weight=GPU_WEIGHT,
            since=self.began,
            work_seconds=self.work,
            deadline=self.deadline,
            budget=self.budget,
            spent=known.charged,
            ran_seconds=known.seconds,
            pace=self.pace,
        )
        offered = offer(Strategy.PACED, wish, now=round(self.market.now * 1000))
        assert offered.pace is not None
        self.pace, self.price = offered.pace, offered.price
        mine = (limited(self.uid, "trainer", 1, self.budget, offered.price),)
        rest = tuple(b for b in self.market.world.bids if b.agent != "trainer")
        self.market.change(bids=(*rest, *(mine if offered.price else ())))

    def check(self) -> None:
        now = used(self.market)
        assert now.charged + now.held <= self.budget


steps = st.lists(
    st.tuples(
        st.sampled_from(["pass", "rival", "release", "kill", "deny"]),
        st.integers(1, 90),  # seconds
        st.integers(1, 30).map(lambda n: n * PRICE // 2),  # what a rival offers
    ),
    min_size=3,
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(st.integers(20_000, 3_000_000), st.sampled_from([60, 600, 3600]), steps)
def test_it_spends_to_plan_and_never_over(
    budget: int, work: int, story: list[tuple[str, int, int]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        market = Market(Path(folder) / "ledger.db")
        market.change(devices=gpus(1))
        paced = Paced(market, budget, hours=1, work=work)
        market.round()
        for n, (what, seconds, price) in enumerate(story):
            paced.look()
            if what == "rival":
                market.round(bid(f"r{n}", "chat", 1, price), after=seconds)
            elif what == "release":
                market.leave(paced.uid, after=seconds)
            elif what == "kill":
                market.restart()
                market.round(after=seconds)
            else:
                market.round(after=seconds)
            for lease in market.ledger.live_leases():
                if lease.phase is Phase.DRAINING:
                    market.leave(lease.bid_uid)
                elif lease.phase is Phase.PENDING and lease.ready and what != "deny":
                    market.claim(lease.bid_uid)
            paced.check()
        market.ledger.close()
        report = verify(market.path)
        assert report.is_sound, report.problem


def test_it_pays_for_the_cheap_hours_and_is_done_in_time(market: Market) -> None:
    """
    A rival takes the GPU at a high price in every other quarter of an hour. With credits for the
    cheap ones only, the work waits for them; near its deadline nothing is left to wait for.
    """
    market.change(devices=gpus(1))
    paced = Paced(market, budget=CREDIT, hours=4, work=3600)
    market.round()
    dear = bid("dear", "chat", 1, 8 * PRICE)
    for minute in range(240):
        paced.look()
        others = tuple(b for b in market.world.bids if b.agent == "trainer")
        is_dear = minute // 15 % 2 == 0
        rival = msgspec.structs.replace(dear, uid=f"dear-{minute // 15}")
        market.round(bids=(*others, *((rival,) if is_dear else ())), after=30)
        for lease in market.ledger.live_leases():
            if lease.phase is Phase.DRAINING or (lease.agent == "chat" and not is_dear):
                market.leave(lease.bid_uid)
            elif lease.phase is Phase.PENDING and lease.ready:
                market.claim(lease.bid_uid)
        market.now += 60 - market.now % 60
        paced.check()
    assert used(market).seconds >= 3600
    assert used(market).charged <= CREDIT
