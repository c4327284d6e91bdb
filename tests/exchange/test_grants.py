"""Default refills: the fleet at list price for an hour, by priority; and what they sustain."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from bidplane.api.agent import Strategy
from bidplane.exchange.round.grants import fleet_worth, price_ceilings, with_default_refills
from bidplane.exchange.snapshot import AgentView, HostSnapshot, agent_view

from .market import Market
from .words import CREDIT, agent, bid, gpus, pool


def sharing(name: str, priority: int = 1, **more: object) -> AgentView:
    view = AgentView(name=name, uid=name, owner=name, priority=priority)
    changes = {"default_refill": True, "default_cap": True, **more}
    return msgspec.structs.replace(view, **changes)


def host(*agents: AgentView, count: int = 16, list_price: int = 5 * CREDIT) -> HostSnapshot:
    listed = msgspec.structs.replace(pool("h100"), list_price=list_price)
    return HostSnapshot(agents=agents, pools=(listed,), devices=gpus(count))


def refills(snapshot: HostSnapshot) -> dict[str, int]:
    return {view.name: view.refill for view in with_default_refills(snapshot).agents}


def test_the_example_of_the_help_is_true() -> None:
    snapshot = host(sharing("high", 3), sharing("low", 1))
    assert fleet_worth(snapshot) == 80 * CREDIT
    assert refills(snapshot) == {"high": 60 * CREDIT, "low": 20 * CREDIT}


@given(
    st.lists(st.integers(1, 10), min_size=1, max_size=8),
    st.integers(0, 12),
    st.integers(1, 10**12),
)
def test_defaults_are_never_more_than_the_fleet_is_worth(
    priorities: list[int], count: int, list_price: int
) -> None:
    agents = [sharing(f"a{n}", priority) for n, priority in enumerate(priorities)]
    snapshot = host(*agents, count=count, list_price=list_price)
    granted = refills(snapshot)
    worth = fleet_worth(snapshot)
    assert sum(granted.values()) <= worth < sum(granted.values()) + len(agents)
    by_priority = sorted(agents, key=lambda view: view.priority)
    shares = [granted[view.name] for view in by_priority]
    assert shares == sorted(shares)


def test_an_explicit_refill_changes_nobody_elses() -> None:
    explicit = sharing("own", 2, default_refill=False, refill=7)
    granted = refills(host(explicit, sharing("a", 1), sharing("b", 1)))
    assert granted == {"own": 7, "a": 20 * CREDIT, "b": 20 * CREDIT}


def test_who_leaves_has_no_share_and_a_cap_of_its_own_stands() -> None:
    agents = (sharing("gone", 9, deleting=True), sharing("a", default_cap=False, cap=5))
    views = {view.name: view for view in with_default_refills(host(*agents)).agents}
    assert views["a"].refill == 80 * CREDIT
    assert views["a"].cap == 5


def test_an_agent_without_refill_has_the_default_and_an_explicit_zero_is_zero() -> None:
    def view(**spec: object) -> AgentView:
        return agent_view({"metadata": {"name": "a", "uid": "u"}, "spec": {"owner": "o", **spec}})

    assert view().default_refill
    assert view(refill="").default_refill
    assert not view(refill="0").default_refill
    assert view(refill="2", priority=3).refill == 6 * CREDIT


def _posted(market: Market) -> int:
    account = market.ledger.account("wallet/a")
    assert account is not None
    return account.posted


def test_grants_wait_until_something_is_for_sale(market: Market) -> None:
    market.change(agents=(sharing("a"),), devices=())
    market.round()
    assert _posted(market) == 0
    listed = msgspec.structs.replace(pool("h100"), list_price=CREDIT)
    market.change(agents=(sharing("a"),), pools=(listed,), devices=gpus(2))
    market.round(after=60)
    assert _posted(market) == 2 * CREDIT
    market.round(after=3600)
    assert _posted(market) == 4 * CREDIT
    market.round(after=3600)  # twice a grant is the most
    assert _posted(market) == 4 * CREDIT


def test_steady_bids_offer_what_the_wallet_pays_for_all_of_them(market: Market) -> None:
    steady = msgspec.structs.replace(
        agent("a", refill=6), cap=6 * CREDIT, strategy=Strategy.STEADY, priority=2
    )
    listed = msgspec.structs.replace(pool("h100"), list_price=5 * CREDIT)
    market.change(agents=(steady,), pools=(listed,), devices=gpus(4))
    report = market.round(bid("b", "a", 2, 0), bid("c", "a", 1, 0), bid("fixed", "a", 1, CREDIT))
    assert {won.ask for won in report.result.won} == {"b", "c", "fixed"}
    assert [market.lease(name).max_price for name in ("b", "c", "fixed")] == [
        2 * CREDIT,
        2 * CREDIT,
        CREDIT,
    ]


def test_a_ceiling_is_only_of_steady_agents() -> None:
    snapshot = host(sharing("a"), sharing("b", strategy=Strategy.STEADY))
    assert list(price_ceilings(snapshot, lambda _: None, 0)) == ["b"]
