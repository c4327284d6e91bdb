"""Bad input: each has a name, and none of it moves a credit."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bidplane.api import labels
from bidplane.api.bid import BidPhase, BidReason
from bidplane.exchange.round.devices import device_views
from bidplane.exchange.snapshot import bid_view
from bidplane.ledger.records import TransferKind

from .market import Market
from .words import CREDIT, PRICE, agent, bid


def written(spec: dict[str, Any], *, namespace: str = "agent-trainer") -> dict[str, Any]:
    """A Bid as the host has it, with whatever its author wrote."""
    return {
        "metadata": {
            "uid": "b1",
            "name": "b1",
            "namespace": namespace,
            "labels": {labels.AGENT: "trainer"},
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"gpus": 1, "maxPrice": "1.00", **spec},
    }


def money_moved(market: Market) -> list[str]:
    """Transfers other than what every wallet and pool gets by itself."""
    own = (TransferKind.REFILL, TransferKind.SEED)
    found = {t.id: t for a in market.ledger.accounts() for t in market.ledger.transfers_of(a.id)}
    return [t.id for t in found.values() if t.kind not in own]


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"maxPrice": "-1"}, BidReason.BAD_PRICE),
        ({"maxPrice": "0"}, BidReason.BAD_PRICE),
        ({"maxPrice": "1e9"}, BidReason.BAD_PRICE),
        ({"maxPrice": "1000001"}, BidReason.BAD_PRICE),
        ({"maxPrice": "NaN"}, BidReason.BAD_PRICE),
        ({"otherwise": [{"gpus": 1, "maxPrice": "-2"}]}, BidReason.BAD_PRICE),
        ({"gpus": 0}, BidReason.BAD_BID),
        ({"gpus": -8}, BidReason.BAD_BID),
        ({"gpus": 2000}, BidReason.BAD_BID),
        ({"gpus": "many"}, BidReason.BAD_BID),
        ({"blocks": 0}, BidReason.BAD_BID),
        ({"deadline": "tomorrow"}, BidReason.BAD_BID),
        ({"deadline": "2026-01-01T00:00:00"}, BidReason.BAD_BID),
        ({"gpus": 9}, BidReason.LARGER_THAN_EVERY_DOMAIN),
        ({"gpus": 4, "blocks": 2}, BidReason.LARGER_THAN_EVERY_DOMAIN),
        ({"gpus": 5, "spread": True}, BidReason.LARGER_THAN_EVERY_DOMAIN),
        ({"pool": "nowhere"}, BidReason.NO_SUCH_POOL),
        ({"termSeconds": -1}, BidReason.BAD_BID),
        ({"termSeconds": 10**9}, BidReason.BAD_BID),
        ({"budget": "0"}, BidReason.BAD_BID),
        ({"budget": "-5"}, BidReason.BAD_BID),
        ({"budget": "1", "work": "w" * 300}, BidReason.BAD_BID),
        ({"share": "1/3"}, BidReason.SHAPE_NOT_SOLD),
        ({"share": "1/2", "gpus": 2}, BidReason.BAD_BID),
        ({"distinctAttribute": "uuid"}, BidReason.CONSTRAINT_NOT_SOLD),
        ({"gpus": 9, "instant": True}, BidReason.LARGER_THAN_EVERY_DOMAIN),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    market: Market, spec: dict[str, Any], reason: BidReason
) -> None:
    view = bid_view(written(spec))
    assert view is not None
    status = market.round(view).bids["b1"]
    assert (status.phase, status.reason) == (BidPhase.REFUSED, reason)
    assert status.message
    assert market.ledger.live_leases() == []
    assert money_moved(market) == []


def test_a_bid_in_anothers_namespace_is_nobodys() -> None:
    """The namespace decides whose wallet pays; a label cannot point at another's."""
    assert bid_view(written({}, namespace="agent-chat")) is None


def test_an_empty_wallet_waits_and_is_told_what_is_missing(market: Market) -> None:
    market.change(agents=(agent("trainer", refill=0),))
    status = market.round(bid("b1", "trainer", 1, PRICE)).bids["b1"]
    assert (status.phase, status.reason) == (BidPhase.WAITING, BidReason.WALLET_TOO_SMALL)
    assert status.message.startswith("The wallet is 0.06 credits short")
    assert money_moved(market) == []


def test_one_uid_wins_once_however_often_it_is_shown(market: Market) -> None:
    twin = msgspec.structs.replace(bid("b1", "trainer", 2, 2 * PRICE), name="other")
    market.round(bid("b1", "trainer", 1, PRICE), twin)
    assert [lease.gpus for lease in market.ledger.live_leases()] == [1]


def test_a_clock_that_goes_back_charges_nothing_and_breaks_nothing(market: Market) -> None:
    market.round(bid("b1", "trainer", 4, PRICE))
    market.claim("b1")
    market.round(after=30)
    before = market.lease("b1"), market.balance("trainer")
    report = market.round(after=-3600)
    assert (market.lease("b1"), market.balance("trainer")) == before
    assert report.bids["b1"].phase is BidPhase.WON
    market.round(after=3600)
    market.leave("b1", after=30)
    # A minute of four GPUs at the floor price: the hour that never was is not in it.
    assert market.balance("trainer") == 10 * CREDIT - (60 * 4 * 100_000 // 3600 + 1)


def test_what_a_device_says_of_itself_is_read_in_any_type() -> None:
    slice_ = {
        "spec": {
            "nodeName": "n1",
            "driver": "d",
            "pool": {"name": "n1"},
            "devices": [
                {
                    "name": "gpu-0",
                    "attributes": {
                        "productName": {"string": "H100"},
                        "bidplane.dev/pcieLinkWidth": {"int": 16},
                    },
                    "capacity": {"memory": {"value": "80Gi"}},
                }
            ],
        }
    }
    (view,) = device_views(slice_)
    assert view.traits["bidplane.dev/pcieLinkWidth"] == "16"
    assert view.traits["memory"] == "80Gi"
