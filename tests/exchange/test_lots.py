"""Lots: which devices are alike for a buyer, what a selector may ask, and what is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bidplane.api.bid import BidPhase, BidReason
from bidplane.api.lease import Phase
from bidplane.core.market import lots
from bidplane.exchange.round import inventory
from bidplane.exchange.round.devices import DeviceView, device_views
from bidplane.exchange.snapshot import BidView, pool_view
from bidplane.ledger.records import lease_id

from .market import Market
from .words import PRICE, bid, gpus, parted, pool


def machine(node: str, **attributes: list[Any]) -> tuple[DeviceView, ...]:
    """A node whose GPUs differ in some attributes, by what its ResourceSlice says."""
    count = len(next(iter(attributes.values())))
    kinds = {str: "string", int: "int"}
    devices = [
        {
            "name": f"gpu-{n}",
            "attributes": {
                "productName": {"string": "H100"},
                "bidplane.dev/linkDomain": {"string": f"{node}/0"},
                **{name: {kinds[type(v[n])]: v[n]} for name, v in attributes.items()},
            },
            "capacity": {"memory": {"value": "80Gi"}},
        }
        for n in range(count)
    ]
    spec = {"nodeName": node, "driver": "gpu.bidplane.dev", "pool": {"name": node}}
    return tuple(device_views({"spec": {**spec, "devices": devices}}))


def selecting(made: BidView, selector: str) -> BidView:
    return msgspec.structs.replace(made, selector=selector)


WIDTH, NVLINKS = "bidplane.dev/pcieLinkWidth", "bidplane.dev/nvlinksPerPeer"
ON_NODE_0 = 'device.attributes["gpu.bidplane.dev"].numaNode == 0'


def test_a_selector_splits_a_lot_and_the_bid_enters_its_part(market: Market) -> None:
    devices = machine("n1", numaNode=[0, 0, 1, 1])
    made = selecting(bid("b1", "trainer", 2, PRICE), ON_NODE_0)
    report = market.round(made, devices=devices, pools=(pool(),))
    assert sorted(d.name for d in market.lease("b1").devices) == ["gpu-0", "gpu-1"]
    assert report.pools["h100"].lots == 2
    assert report.pools["h100"].devices == 4
    # Who does not select may have any of it, in one lot.
    market.round(bid("b2", "chat", 2, PRICE))
    assert sorted(d.name for d in market.lease("b2").devices) == ["gpu-2", "gpu-3"]


def test_a_selector_that_is_true_of_all_splits_nothing(market: Market) -> None:
    memory = 'device.capacity["gpu.bidplane.dev"].memory.compareTo(quantity("40Gi")) > 0'
    made = selecting(bid("b1", "trainer", 4, PRICE), memory)
    report = market.round(made, devices=machine("n1", numaNode=[0, 0, 1, 1]), pools=(pool(),))
    assert report.bids["b1"].phase is BidPhase.WON
    assert report.pools["h100"].lots == 1


def test_a_pool_that_says_nothing_sells_memory_width_and_kind_of_link_apart(
    market: Market,
) -> None:
    default = pool_view({"metadata": {"name": "h100"}, "spec": {"product": "H100"}})
    assert default is not None
    bridged, plain, narrow = (
        machine(node, **{NVLINKS: [links] * 4, WIDTH: [width] * 4})
        for node, links, width in (("n1", 18, 16), ("n2", 0, 16), ("n3", 0, 4))
    )
    report = market.round(pools=(default,), devices=(*bridged, *plain, *narrow))
    assert report.pools["h100"].lots == 3
    report = market.round(
        devices=(*bridged, *machine("n4", **{NVLINKS: [18] * 4, WIDTH: [16] * 4}))
    )
    assert report.pools["h100"].lots == 1


@pytest.mark.parametrize(
    ("selector", "reason"),
    [
        ('device.attributes["gpu.bidplane.dev"].numaNode == 7', BidReason.SELECTS_NOTHING),
        ('device.attributes["gpu.bidplane.dev"].nosuch == 7', BidReason.BAD_BID),
        ("device.attributes[", BidReason.BAD_BID),
    ],
)
def test_a_selector_that_cannot_be_served_is_refused(
    market: Market, selector: str, reason: BidReason
) -> None:
    made = selecting(bid("b1", "trainer", 1, PRICE), selector)
    report = market.round(made, devices=machine("n1", numaNode=[0, 1]), pools=(pool(),))
    assert report.bids["b1"].phase is BidPhase.REFUSED
    assert report.bids["b1"].reason is reason


def test_a_selector_that_would_split_too_often_is_too_fine(market: Market) -> None:
    devices = machine("n1", numaNode=[0, 1, 2])
    few = msgspec.structs.replace(pool(), max_lots=2)
    first = selecting(bid("b1", "trainer", 1, PRICE, created=1), ON_NODE_0)
    second = selecting(bid("b2", "chat", 1, PRICE, created=2), ON_NODE_0.replace("0", "1"))
    report = market.round(second, first, devices=devices, pools=(few,))
    assert report.bids["b1"].phase is BidPhase.WON  # the earlier one may split it
    assert report.bids["b2"].reason is BidReason.SELECTOR_TOO_FINE
    assert lots.LOTS_MOST == 16


def test_what_all_devices_of_a_block_have_in_common_can_be_asked_for(market: Market) -> None:
    devices = machine("n1", numaNode=[0, 0, 1, 1])
    asked = [
        msgspec.structs.replace(bid(f"b{n}", "trainer", 2, PRICE), match_attribute=match)
        for n, match in enumerate([("bidplane.dev/linkDomain",), ("numaNode",)])
    ]
    report = market.round(*asked, devices=devices, pools=(pool(),))
    assert report.bids["b0"].phase is BidPhase.WON
    assert report.bids["b1"].reason is BidReason.CONSTRAINT_NOT_SOLD
    # Sold by it, each lot keeps it.
    by_node = msgspec.structs.replace(pool(), sell_by=("numaNode",))
    report = market.round(pools=(by_node,))
    assert report.bids["b1"].phase is BidPhase.WON


def test_devices_that_must_differ_are_not_sold(market: Market) -> None:
    made = msgspec.structs.replace(bid("b1", "trainer", 2, PRICE), distinct_attribute="numaNode")
    report = market.round(made, devices=machine("n1", numaNode=[0, 1]), pools=(pool(),))
    assert report.bids["b1"].reason is BidReason.CONSTRAINT_NOT_SOLD


def test_an_alternative_that_is_not_sold_leaves_the_others(market: Market) -> None:
    other = bid("b1", "trainer", 1, PRICE)
    made = selecting(other, "device.driver == 'nobody'")
    made = msgspec.structs.replace(made, otherwise=(other,))
    report = market.round(made, devices=machine("n1", numaNode=[0, 1]), pools=(pool(),))
    assert report.bids["b1"].phase is BidPhase.WON


def test_a_win_whose_device_goes_before_it_begins_is_void(market: Market) -> None:
    before = 10 * 1_000_000
    market.round(bid("b1", "trainer", 4, PRICE))
    market.round(devices=gpus(3))
    gone = market.lease("b1")
    assert (gone.phase, gone.reason) == (Phase.RELEASED, "InventoryChanged")
    assert market.balance("trainer") == before, "holds are released, no minimum is charged"


def test_rent_resumes_when_the_device_is_back(market: Market) -> None:
    market.round(bid("b1", "trainer", 4, PRICE))
    market.claim("b1")
    market.round(after=30, devices=gpus(3))
    market.round(after=300, devices=gpus(4))
    assert market.lease("b1").breached_at == 0
    market.leave("b1", after=30)
    paid = market.lease("b1").charged
    assert paid == -(-60 * 4 * 100_000 // 3600), "the five minutes without it cost nothing"


def test_a_tainted_device_is_not_sold_and_its_holder_keeps_it(market: Market) -> None:
    market.round(bid("b1", "trainer", 4, PRICE))
    market.claim("b1")
    closed = tuple(msgspec.structs.replace(d, closed="tainted, on node n1") for d in gpus(4))
    market.round(devices=closed)
    assert market.lease("b1").breached_at == 0
    market.leave("b1")
    report = market.round(bid("b2", "chat", 1, PRICE))
    assert report.bids["b2"].phase is not BidPhase.WON
    assert market.round(devices=gpus(4)).bids["b2"].phase is BidPhase.WON
    assert market.ledger.lease(lease_id("b2")) is not None


def test_the_inventory_is_kept_while_the_same_devices_are_for_sale() -> None:
    cache, devices = inventory.InventoryCache(), machine("n1", numaNode=[0, 0, 1, 1])
    plain, picky = bid("b1", "trainer", 2, PRICE), bid("b2", "chat", 2, PRICE)
    first = cache.get((pool(),), devices, [plain], {})
    assert cache.get((pool(),), tuple(devices), [], {}) is first
    split = cache.get((pool(),), devices, [plain, selecting(picky, ON_NODE_0)], {})
    assert len(split.stocks) == 2
    fewer = cache.get((pool(),), devices[1:], [plain], {})
    assert [stock.devices for stock in fewer.stocks] == [3]
    cut = (parted(pool()),)
    assert [bool(stock.leaves) for stock in cache.get(cut, devices[1:], [], {}).stocks] == [True]
