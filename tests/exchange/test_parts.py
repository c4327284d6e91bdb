"""Parts of a GPU: who gets which, what they cost, and who must leave for whom."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bidplane.api.bid import BidPhase, BidReason
from bidplane.api.lease import Phase
from bidplane.api.shape import PART_UNITS
from bidplane.core.devices.mig import Profile, Slot
from bidplane.core.devices.ranges import overlap, size_of, union
from bidplane.core.devices.topology import Gpu, Machine
from bidplane.exchange.instantsales import NoSale
from bidplane.exchange.round.inventory import build_inventory
from bidplane.exchange.snapshot import take
from bidplane.ledger import verify
from bidplane.ledger.records import Lease, lease_id, wallet_of
from bidplane.node.inventory.slices import slices_of

from .market import Market
from .words import CREDIT, PRICE, agent, bid, gpus, parted, pool, shown_lease, with_memory


@pytest.fixture
def eighths(market: Market) -> Market:
    market.change(pools=(parted(pool()),), devices=gpus(1))
    return market


def test_a_half_costs_half(eighths: Market) -> None:
    report = eighths.round(bid("b1", "trainer", 1, PRICE, share="1/2"))
    assert report.bids["b1"].share_sold == "0.5"
    assert "0.5 of a GPU" in report.bids["b1"].message
    eighths.claim("b1")
    eighths.leave("b1", after=60)
    lease = eighths.lease("b1")
    assert (lease.weight, lease.devices[0].units) == (8400, (0, 1200))
    assert eighths.balance("trainer") == 10 * CREDIT - -(-60 * 100_000 // (2 * 3600))


def test_a_gpu_is_full_when_its_eighths_are(eighths: Market) -> None:
    shares = ["1/2", "1/4", "1/8", "1/8", "1/8"]
    made = [bid(f"b{n}", "trainer", 1, (9 - n) * PRICE, share=s) for n, s in enumerate(shares)]
    report = eighths.round(*made, bid("whole", "chat", 1, 50_000))
    won = [uid for uid, status in report.bids.items() if status.phase is BidPhase.WON]
    assert len(won) == 4
    held = [eighths.lease(uid).devices[0].units for uid in won]
    assert sum(map(size_of, held)) == size_of(union(held)) == PART_UNITS
    classes = report.result.lots[0].classes
    assert set(classes) <= {"1", "0.5", "0.25", "0.125"}


def test_a_better_half_displaces_a_half_and_waits_for_it(eighths: Market) -> None:
    for n in (1, 2):
        eighths.round(bid(f"b{n}", "trainer", 1, n * PRICE, share="1/2"))
        eighths.claim(f"b{n}")
    eighths.round(after=60)
    fund = eighths.fund()
    report = eighths.round(bid("b3", "chat", 1, 3 * PRICE, share="1/4"))
    assert [d.lease for d in report.result.displaced] == [eighths.lease("b1").id]
    gone, new = eighths.lease("b1"), eighths.lease("b3")
    assert gone.phase is Phase.DRAINING
    assert not new.ready
    assert union([new.devices[0].units, gone.devices[0].units]) == gone.devices[0].units
    assert gone.compensation == new.charged > 0
    assert eighths.fund() >= fund
    eighths.claim("b3")
    eighths.leave("b1", after=5)
    assert eighths.lease("b3").phase is Phase.ACTIVE
    assert eighths.lease("b2").phase is Phase.ACTIVE


def test_a_whole_gpu_displaces_the_parts_of_one_and_waits_for_all_of_them(eighths: Market) -> None:
    for name, share in (("b1", "1/2"), ("b2", "0.01")):
        eighths.round(bid(name, "trainer", 1, PRICE, share=share))
        eighths.claim(name)
    eighths.round(after=60)
    least = PRICE * 1279 // 1024 + 1
    low = eighths.round(bid("low", "chat", 1, PRICE)).bids["low"]
    assert (low.reason, low.price_to_win) == (BidReason.OUTBID, str(least / CREDIT))
    report = eighths.round(bid("whole", "chat", 1, least))
    assert {d.lease for d in report.result.displaced} == {lease_id("b1"), lease_id("b2")}
    new = eighths.lease("whole")
    assert (new.devices[0].share, new.ready) == ("", False)
    assert new.charged == sum(eighths.lease(b).compensation for b in ("b1", "b2")) > 0
    eighths.leave("b1", after=5)
    assert not eighths.lease("whole").ready
    eighths.leave("b2", after=5)
    eighths.claim("whole")
    assert eighths.lease("whole").phase is Phase.ACTIVE
    eighths.leave("whole", "low", after=60)
    eighths.ledger.close()
    assert (result := verify(eighths.path)).is_sound, result.problem


def test_a_block_of_several_is_told_that_a_gpu_is_leased_in_parts(market: Market) -> None:
    market.change(pools=(parted(pool()),), devices=gpus(2))
    market.round(bid("part", "trainer", 1, PRICE, share="0.01"))
    market.claim("part")
    status = market.round(bid("pair", "chat", 2, 9 * PRICE)).bids["pair"]
    assert (status.reason, status.price_to_win) == (BidReason.NO_FREE_BLOCK, "")
    assert (
        "No price wins a block of 2 GPUs in h100 now: 1 GPU is leased in parts." in status.message
    )


def test_a_part_that_displaces_a_whole_win_waits_for_the_parts_that_drain(eighths: Market) -> None:
    eighths.round(bid("old", "trainer", 1, PRICE, share="1/2"))
    eighths.claim("old")
    eighths.round(bid("whole", "chat", 1, 2 * PRICE))
    assert eighths.lease("old").phase is Phase.DRAINING
    report = eighths.round(bid("new", "trainer", 1, 4 * PRICE + 1, share="1/2"))
    assert report.bids["new"].phase is BidPhase.WON
    new, old = eighths.lease("new"), eighths.lease("old")
    assert eighths.lease("whole").phase is Phase.RELEASED
    assert (new.ready, new.waits_for) == (False, (old.id,))
    eighths.leave("old", after=5)
    assert eighths.lease("new").ready


def test_mig_instances_are_where_the_geometry_has_them(market: Market) -> None:
    market.change(pools=(parted(pool(), mig=True),), devices=with_memory(gpus(1)))
    made = [bid(f"b{n}", "trainer", 1, PRICE, share="1g.10gb") for n in range(3)]
    report = market.round(*made, bid("big", "chat", 1, PRICE, share="3g.40gb"))
    won = sorted(uid for uid, status in report.bids.items() if status.phase is BidPhase.WON)
    assert len(won) == 3
    small = [market.lease(uid) for uid in won if uid != "big"]
    assert sorted(lease.devices[0].slots for lease in small) == [(2,), (3,)]
    assert {lease.weight for lease in small} == {2400}
    big = market.lease("big")
    assert (big.devices[0].slots, big.weight) == ((4, 5, 6, 7), 8400)


def test_a_new_geometry_waits_until_nobody_has_a_part(market: Market) -> None:
    market.change(pools=(parted(pool(), mig=True),), devices=with_memory(gpus(1)))
    market.round(bid("b1", "trainer", 1, PRICE, share="1g.10gb"))
    market.claim("b1")
    halves = (Slot("3g.40gb", 0), Slot("3g.40gb", 4))
    market.change(pools=(msgspec.structs.replace(market.world.pools[0], geometry=halves),))
    report = market.round(bid("b2", "chat", 1, PRICE, share="3g.40gb"))
    assert report.bids["b2"].phase is BidPhase.WAITING
    market.leave("b1")
    assert market.round().bids["b2"].phase is BidPhase.WON


def test_a_geometry_no_gpu_can_have_sells_whole_gpus_and_says_so(market: Market) -> None:
    bad = (Slot("3g.40gb", 0), Slot("2g.20gb", 2))
    wrong = msgspec.structs.replace(parted(pool(), mig=True), geometry=bad)
    report = market.round(
        bid("b1", "trainer", 1, PRICE, share="3g.40gb"),
        bid("b2", "trainer", 1, PRICE),
        pools=(wrong,),
        devices=with_memory(gpus(2)),
    )
    assert report.bids["b1"].reason is BidReason.SHAPE_NOT_SOLD
    assert report.bids["b2"].phase is BidPhase.WON
    assert "share memory slice" in report.pools["h100"].message


def test_parts_are_sold_at_once_from_the_float(market: Market) -> None:
    floating = msgspec.structs.replace(parted(pool()), float_percent=5)
    devices = tuple(d for n in range(3) for d in gpus(8, node=f"n{n}"))
    market.round(pools=(floating,), devices=devices, agents=(agent("chat", refill=100),))
    wallet = market.ledger.account(wallet_of("uid-chat"))
    assert wallet is not None

    def buy(key: str, share: str) -> Lease | NoSale:
        now = round(market.now * 1000)
        desk = market.engine.desk
        return desk.buy(wallet, pool="h100", max_price=PRICE, key=key, now=now, share=share)

    half, quarter = buy("1", "1/2"), buy("2", "1/4")
    assert isinstance(half, Lease)
    assert isinstance(quarter, Lease)
    assert half.devices[0].whole == quarter.devices[0].whole
    assert not overlap(half.devices[0].units, quarter.devices[0].units)
    sold_out = buy("3", "1/2")
    assert isinstance(sold_out, NoSale)
    assert sold_out.reason == "SoldOut"
    assert buy("3", "") == sold_out
    odd = buy("4", "0.001")
    assert isinstance(odd, NoSale)
    assert odd.reason == "ShapeNotSold"
    again = buy("1", "1/2")
    assert isinstance(again, Lease)
    assert (again.id, again.devices) == (half.id, half.devices), "the same key buys once"
    market.round()  # the rest of the cut GPU is for the round again
    assert market.round(bid("b1", "chat", 1, PRICE, share="1/4")).bids["b1"].phase is BidPhase.WON
    assert market.lease("b1").devices[0].whole == half.devices[0].whole


def test_a_gang_of_parts_and_blocks_is_won_whole(market: Market) -> None:
    market.change(pools=(parted(pool()),), devices=(*gpus(2), *gpus(2, node="n2")))
    report = market.round(bid("b1", "trainer", 2, PRICE, blocks=2))
    assert report.bids["b1"].phase is BidPhase.WON
    lease = market.lease("b1")
    assert [{d.node for d in block} for block in lease.blocks] == [{"n1"}, {"n2"}]
    market.claim("b1")
    market.leave("b1")
    report = market.round(bid("b2", "chat", 1, PRICE, share="1/2", blocks=9))
    assert report.bids["b2"].phase is not BidPhase.WON  # eight halves are there
    report = market.round(bid("b3", "chat", 1, PRICE, share="1/2", blocks=8))
    assert report.bids["b3"].phase is BidPhase.WON
    assert market.lease("b3").weight == 8 * 8400


def test_a_gang_has_left_when_all_of_it_has() -> None:
    def shown(part: int, **metadata: Any) -> dict[str, object]:
        return shown_lease("b1", f"lease-abc-{part}", **metadata)

    gone = {"deletionTimestamp": "2026-11-16T00:00:00Z"}
    parts = [shown(0, **gone), shown(1)]
    nothing = {"agents": (), "pools": (), "bids": (), "slices": (), "nodes": ()}
    assert take(**nothing, leases=parts).left == frozenset()
    parts[1] = shown(1, **gone)
    assert take(**nothing, leases=parts).left == {lease_id("b1")}


@pytest.fixture
def cut(market: Market) -> Market:
    market.change(pools=(parted(pool(), mig=True),), devices=with_memory(gpus(1)))
    return market


def test_a_part_that_cannot_be_made_ready_is_not_charged(cut: Market) -> None:
    cut.round(bid("b1", "trainer", 1, PRICE, share="1g.10gb"))
    cut.claim("b1")
    broken = frozenset({cut.lease("b1").id})
    before = cut.balance("trainer")
    cut.round(after=7, unusable=broken)  # the node took a while to find out
    cut.round(after=200)
    assert cut.lease("b1").phase is Phase.ACTIVE
    cut.leave("b1", after=60)
    assert cut.lease("b1").phase is Phase.RELEASED
    assert cut.balance("trainer") == before, "not even the least that a lease costs"


def test_a_part_that_is_made_ready_after_all_is_charged_from_then(cut: Market) -> None:
    cut.round(bid("b1", "trainer", 1, PRICE, share="1g.10gb"))
    cut.claim("b1")
    before = cut.balance("trainer")
    cut.round(unusable=frozenset({cut.lease("b1").id}))
    cut.round(after=300, unusable=frozenset())
    cut.leave("b1", after=70)
    assert before - cut.balance("trainer") == -(-70 * 8 * 100_000 // (56 * 3600))


def test_a_part_that_breaks_later_pays_for_the_epochs_that_were_billed(cut: Market) -> None:
    cut.round(bid("b1", "trainer", 1, PRICE, share="1g.10gb"))
    cut.claim("b1")
    cut.round(after=60)
    cut.round(after=5, unusable=frozenset({cut.lease("b1").id}))
    cut.leave("b1", after=600)
    assert 10 * CREDIT - cut.balance("trainer") == -(-65 * 8 * 100_000 // (56 * 3600))


def test_a_claim_says_which_lease_cannot_be_used() -> None:
    def claim(name: str, *ready: str) -> dict[str, object]:
        devices = [{"conditions": [{"type": "Ready", "status": one}]} for one in ready]
        return {
            "metadata": {"name": name, "labels": {"bidplane.dev/lease": name}},
            "status": {"devices": devices},
        }

    claims = [
        claim("lease-good", "True"),
        claim("lease-bad", "True", "False"),
        claim("lease-gang-1", "False"),
        claim("lease-new"),
        {"metadata": {"name": "of-nobody"}, "status": {"devices": [{"conditions": []}]}},
    ]
    names = {"good": "lease-good", "bad": "lease-bad", "gang": "lease-gang-1", "new": "lease-new"}
    leases = [shown_lease(bid, name) for bid, name in names.items()]
    seen = take(agents=(), pools=(), bids=(), slices=(), leases=leases, nodes=(), claims=claims)
    assert seen.unusable == {lease_id("bad"), lease_id("gang")}


def test_a_pool_whose_gpus_cannot_be_cut_sells_no_parts_and_says_why(market: Market) -> None:
    some, *rest = with_memory(gpus(2))
    plain = msgspec.structs.replace(some, traits={"memory": "80Gi"})
    market.change(pools=(parted(pool(), mig=True),), devices=(plain, *rest))
    report = market.round(bid("b1", "trainer", 1, PRICE, share="1g.10gb"))
    assert report.bids["b1"].phase is not BidPhase.WON
    assert "1 of 2 GPUs cannot be cut by MIG" in report.pools["h100"].message


def test_a_cards_memory_as_its_driver_counts_it_is_the_size_it_is_sold_as(market: Market) -> None:
    market.change(pools=(parted(pool(), mig=True),), devices=with_memory(gpus(1), "81559Mi"))
    report = market.round(bid("b1", "trainer", 1, PRICE, share="1g.10gb"))
    assert report.bids["b1"].phase is BidPhase.WON


def test_a_card_no_table_has_is_sold_as_it_says_itself() -> None:
    """An RTX PRO 6000 Blackwell: four slices, told by its parts, from its driver to the lease."""
    said = {
        "1g.24gb": Profile(1, 1, (0, 1, 2, 3)),
        "2g.48gb": Profile(2, 2, (0, 2)),
        "4g.96gb": Profile(4, 4, (0,)),
    }
    card = Gpu(index=0, uuid="GPU-0", product="RTX", memory=96 << 30, mig=True, profiles=said)
    slices = slices_of(Machine(name="n", gpus=(card,)))
    geometry = [{"profile": "2g.48gb", "start": 0}, {"profile": "1g.24gb", "start": 3}]
    spec = {"product": "RTX", "divides": "mig", "geometry": geometry}
    seen = take(
        agents=(),
        pools=[{"metadata": {"name": "rtx"}, "spec": spec}],
        bids=(),
        slices=slices,
        leases=(),
        nodes=(),
    )
    assert seen.cards == {"GPU-0": said}
    (stock,) = build_inventory(seen.pools, seen.devices, cards=seen.cards).stocks
    assert stock.problem == ""
    assert [(leaf.name, leaf.weight, leaf.starts, leaf.span) for leaf in stock.leaves] == [
        ("2g.48gb", 8400, (0,), 2),
        ("1g.24gb", 4200, (3,), 1),
    ]
    (blind,) = build_inventory(seen.pools, seen.devices).stocks
    assert "no GPU with 103 GB is known to have MIG" in blind.problem


def test_cards_of_the_table_are_not_asked_every_second() -> None:
    card = Gpu(index=0, uuid="GPU-0", product="H100", memory=80 << 30, mig=True)
    spec = {"product": "H100", "divides": "mig", "geometry": [{"profile": "1g.10gb", "start": 0}]}
    seen = take(
        agents=(),
        pools=[{"metadata": {"name": "h100"}, "spec": spec}],
        bids=(),
        slices=slices_of(Machine(name="n", gpus=(card,))),
        leases=(),
        nodes=(),
    )
    assert seen.cards == {}
    (stock,) = build_inventory(seen.pools, seen.devices).stocks
    assert [leaf.name for leaf in stock.leaves] == ["1g.10gb"]
