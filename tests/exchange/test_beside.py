"""Bids that need what nobody sells beside their GPUs: where they win, and what a miss costs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bidplane.api.bid import BidBeside, BidPhase, BidReason
from bidplane.api.lease import Phase
from bidplane.api.money import GPU_WEIGHT
from bidplane.api.reading import GPULease, read_lease
from bidplane.core.devices.companions import Unpriced
from bidplane.exchange import snapshot
from bidplane.exchange.projector import lease_object
from bidplane.exchange.round.conditions import lease_marks
from bidplane.exchange.snapshot import BidView, bid_view
from bidplane.ledger import verify
from bidplane.ledger.records import lease_id
from bidplane.ledger.rounds import find_round, replay

from .market import Market
from .words import PRICE, agent, bid, gpus, movable, shown_lease

DRIVER = "nic.example.com"
NIC = BidBeside(device_class=DRIVER, selectors=(f'device.driver == "{DRIVER}"',))
CLASS: dict[str, Any] = {"metadata": {"name": DRIVER}, "spec": {}}


def nics(node: str, count: int) -> dict[str, Any]:
    spec = {
        "driver": DRIVER,
        "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": f"nic-{at}"} for at in range(count)],
    }
    return {"metadata": {"name": f"{node}-nics"}, "spec": spec}


def taken(node: str, device: str) -> dict[str, Any]:
    result = {"request": "r", "driver": DRIVER, "pool": node, "device": device}
    return {
        "metadata": {"name": "theirs"},
        "status": {"allocation": {"devices": {"results": [result]}}},
    }


def wired(uid: str, agent: str = "trainer", count: int = 1, **more: Any) -> BidView:
    made = bid(uid, agent, count, PRICE)
    return msgspec.structs.replace(made, one_node=True, beside=(NIC,), **more)


@pytest.fixture
def rack(market: Market) -> Market:
    """Two machines, of which the larger has a NIC; rich agents."""
    market.change(
        agents=(agent("trainer", refill=1000), agent("chat", refill=1000)),
        devices=(*gpus(2, node="n1"), *gpus(4, node="n2")),
        unpriced=Unpriced([nics("n2", 1)], classes=[CLASS]),
    )
    return market


def test_it_is_sold_where_the_nic_is_though_another_machine_is_tighter(rack: Market) -> None:
    rack.round(wired("b1"), msgspec.structs.replace(bid("b2", "chat", 1, PRICE), one_node=True))
    assert (rack.lease("b1").node, rack.lease("b2").node) == ("n2", "n1")
    assert rack.lease("b1").weight == GPU_WEIGHT, "a NIC is not paid for"
    record = find_round(rack.ledger, rack.ledger.last_round)
    assert replay(record).to_the_byte


def test_the_lease_knows_it_also_when_its_bid_is_gone(rack: Market) -> None:
    rack.round(wired("b1"), bid("b2", "chat", 1, PRICE))
    rack.restart()
    rack.round(bids=())
    assert (rack.lease("b1").beside, rack.lease("b2").beside) == ((NIC,), ())
    shown = msgspec.json.decode(msgspec.json.encode(lease_object(rack.lease("b1"))))
    assert shown["spec"]["beside"] == [
        {"deviceClass": DRIVER, "count": 1, "selectors": list(NIC.selectors)}
    ]
    rack.ledger.close()
    assert verify(rack.path).is_sound


def test_one_that_misses_it_is_void_and_nothing_was_charged(rack: Market) -> None:
    rack.round()
    before = rack.balance("trainer"), rack.fund()
    rack.round(wired("b1"))
    assert rack.lease("b1").phase is Phase.PENDING
    assert rack.balance("trainer") == before[0]
    # Somebody else has claimed it meanwhile; whoever shows the lease says so. It is given up
    # by its agent in the same moment: then it is void, and not left.
    id = lease_id("b1")
    there = Unpriced([nics("n2", 1)], [taken("n2", "nic-0")], [CLASS])
    report = rack.round(void=frozenset({id}), left=frozenset({id}), unpriced=there)
    lease = rack.lease("b1")
    assert (lease.phase, lease.reason, lease.charged) == (Phase.RELEASED, "InventoryChanged", 0)
    assert (rack.balance("trainer"), rack.fund()) == before
    assert rack.ledger.transfers_of(lease.wallet) == [
        one for one in rack.ledger.transfers_of(lease.wallet) if one.at < lease.won_at
    ]
    with rack.ledger.commit(round(rack.now * 1000)) as commit:
        account = commit.account(lease.wallet)
        assert account is not None
        assert account.available == before[0], "nothing is held any more"
    assert report.bids["b1"].phase is BidPhase.ENDED
    assert verify(rack.path).is_sound
    # It bids again, is told what it waits for, and is sold when that is given back.
    for _ in range(5):
        report = rack.round(bids=(wired("b2"),))
        assert report.bids["b2"].phase is BidPhase.WAITING
        assert report.bids["b2"].reason is BidReason.DEVICE_TAKEN
    assert report.bids["b2"].message == (
        "no machine with such GPUs has nic.example.com free now, which it needs beside them; the"
        " bid stands"
    )
    rack.round(unpriced=Unpriced([nics("n2", 1)], classes=[CLASS]))
    assert rack.lease("b2").node == "n2"


def test_one_that_has_begun_is_not_void(rack: Market) -> None:
    rack.round(wired("b1"))
    rack.claim("b1")
    rack.round(void=frozenset({lease_id("b1")}))
    assert rack.lease("b1").phase is Phase.ACTIVE


def test_what_no_such_machine_has_is_named(rack: Market) -> None:
    report = rack.round(wired("b1"), unpriced=Unpriced([nics("elsewhere", 4)], classes=[CLASS]))
    assert report.bids["b1"].phase is BidPhase.REFUSED
    assert report.bids["b1"].reason is BidReason.NO_SUCH_DEVICE
    assert "has nic.example.com, which it needs beside them" in report.bids["b1"].message
    report = rack.round(unpriced=Unpriced([nics("n1", 1)]))
    assert report.bids["b1"].reason is BidReason.NO_SUCH_CLASS
    assert "the host has no DeviceClass nic.example.com" in report.bids["b1"].message
    rack.round(unpriced=Unpriced([nics("n1", 1)], classes=[CLASS]))
    assert rack.lease("b1").node == "n1", "it stands, and is sold when there is one"


def test_a_gang_has_one_for_each_of_its_sets(rack: Market) -> None:
    both = Unpriced([nics("n1", 1), nics("n2", 1)], classes=[CLASS])
    rack.round(wired("b1", blocks=2), unpriced=both)
    assert sorted(device.node for device in rack.lease("b1").devices) == ["n1", "n2"]
    report = rack.round(
        wired("b2", "chat", blocks=2), unpriced=Unpriced([nics("n2", 1)], classes=[CLASS])
    )
    assert report.bids["b2"].reason is BidReason.NO_MACHINE_HAS_ALL


def test_a_selector_that_fails_is_refused_in_its_words(rack: Market) -> None:
    fails = 'device.attributes["nic.example.com"].speed == 400'
    need = msgspec.structs.replace(NIC, selectors=(*NIC.selectors, fails))
    report = rack.round(msgspec.structs.replace(wired("b1"), beside=(need,)))
    assert report.bids["b1"].reason is BidReason.BAD_BID
    assert "speed" in report.bids["b1"].message


def test_what_has_a_nic_beside_it_is_not_moved_away(rack: Market) -> None:
    rack.change(agents=(movable("trainer"), agent("chat", refill=1000)))
    rack.round(wired("b1"))
    rack.claim("b1")
    rack.round(bid("b2", "trainer", 1, PRICE))
    rack.claim("b2")
    rack.round(after=120)
    movers = {one.id: one.movable for one in rack.engine_input().incumbents}
    assert movers == {lease_id("b1"): False, lease_id("b2"): True}


SPEC = {"gpus": 1, "maxPrice": "1.00", "oneNode": True}
WRITTEN = {"deviceClass": DRIVER, "selectors": list(NIC.selectors)}


def written(**spec: Any) -> dict[str, Any]:
    marks = {"bidplane.dev/agent": "a"}
    metadata = {"uid": "u", "namespace": "agent-a", "name": "b", "labels": marks}
    return {"metadata": metadata, "spec": {**SPEC, "beside": [WRITTEN], **spec}}


def test_it_is_read_from_a_bid_and_holds_for_each_of_its_choices() -> None:
    view = bid_view(written(otherwise=[{"gpus": 2, "maxPrice": "1.00", "oneNode": True}]))
    assert view is not None
    assert (view.problem, view.beside) == ("", (NIC,))
    assert [choice.beside for choice in view.otherwise] == [(NIC,)]


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"oneNode": False}, "set oneNode, too"),
        ({"otherwise": [{"gpus": 2, "maxPrice": "1.00"}]}, "spec.otherwise[0]: beside"),
        ({"beside": [{**WRITTEN, "count": 33}]}, "32"),
    ],
)
def test_a_bid_that_does_not_say_which_and_where_is_refused(spec: Any, says: str) -> None:
    view = bid_view(written(**spec))
    assert view is not None
    assert view.bad is BidReason.BAD_BID
    assert says in view.problem


def test_the_host_is_read_for_it_only_where_a_bid_asks() -> None:
    host: dict[str, Any] = {
        "agents": [], "pools": [], "leases": [], "nodes": [],
        "slices": [nics("n2", 2)], "classes": [CLASS], "claims": [taken("n2", "nic-0")],
    }  # fmt: skip
    reader = snapshot.Reader()
    assert reader.take(bids=[], **host).unpriced.sets((NIC,), 9) == {}
    first = reader.take(bids=[written()], **host)
    assert first.unpriced.sets((NIC,), 9) == {"n2": 1}
    assert reader.take(bids=[written()], **host).unpriced is first.unpriced
    host["claims"] = []
    assert reader.take(bids=[written()], **host).unpriced.sets((NIC,), 9) == {"n2": 2}


def test_that_a_win_is_void_is_read_from_its_lease() -> None:
    void = {"conditions": [{"type": "Void", "status": "True"}]}
    assert not lease_marks(lease(shown_lease("u", "lease-1-0"))).void
    marks = lease_marks(lease(shown_lease("u", "lease-1-0", status=void)))
    assert (marks.id, marks.void) == (lease_id("u"), True)


def lease(obj: dict[str, Any]) -> GPULease:
    struct = read_lease(obj)
    assert isinstance(struct, GPULease)
    return struct
