"""
The agent's scheduler on a model of its plane.

The model is no server: it keeps objects in dictionaries, carries out the plan as a plane
would, and lets the exchange, the nodes and the user do what they do, in any order. The
scheduler reads it through caches that are late, each kind by itself, as informers are.
"""

import itertools
import random
from functools import partial

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bidplane.api import labels
from bidplane.core import scheduling
from bidplane.core.hosting.translation import host_name
from bidplane.core.scheduling import (
    BindPod,
    CreateBid,
    DeleteBid,
    Explain,
    PlaneSnapshot,
    ReleaseLease,
)
from bidplane.wire.names import subdomain_problems, value_problems
from core.structs import REASONS, as_bid, as_lease

KINDS = ("pods", "bids", "leases", "nodes")


def pod(name="train", uid="11111111-aaaa", gpus="2", namespace="default", **spec):
    container = {"name": "main", "resources": {"limits": {labels.GPU_RESOURCE: gpus}}}
    return {
        "metadata": {"name": name, "namespace": namespace, "uid": uid},
        "spec": {"containers": [container], **spec},
        "status": {"phase": "Pending"},
    }


def bid_for(found, phase=None):
    (operation,) = scheduling.plan(snapshot(pods=[found]))
    assert isinstance(operation, CreateBid)
    bid = {**operation.bid, "metadata": {**operation.bid["metadata"], "uid": "b1"}}
    if phase:
        bid["status"] = {"phase": phase, "reason": REASONS[phase], "message": f"it is {phase}"}
    return bid


def lease_of(bid, phase="Pending", name="lease-1", **status):
    on_host = host_name(bid["metadata"]["namespace"], bid["metadata"]["name"])
    return {
        "metadata": {"name": name, "namespace": bid["metadata"]["namespace"], "uid": name},
        "spec": {"bid": {"namespace": "agent-a", "name": on_host, "uid": "h1"}},
        "status": {"phase": phase, **status} if phase else {},
    }


def node(name="lease-1", **spec):
    return {"metadata": {"name": name}, "spec": spec, "status": {"allocatable": {"pods": "110"}}}


def snapshot(pods=(), bids=(), leases=(), nodes=(), max_price="1.00"):
    return PlaneSnapshot(
        pods=list(pods),
        bids=list(map(as_bid, bids)),
        leases=list(map(as_lease, leases)),
        nodes=list(nodes),
        max_price=max_price,
    )


def words(operations):
    return [type(operation).__name__ for operation in operations]


# What was bought over HTTP, without a bid.

ORDER = "order-0123456789abcdef"


def bought(phase="Pending"):
    lease = lease_of({"metadata": {"name": "none", "namespace": "default"}}, phase)
    bid = {"namespace": "agent-a", "name": ORDER, "uid": "order/a/key"}
    lease["spec"] |= {"bid": bid, "origin": "order", "devices": [{"name": "g"}]}
    return lease


def ordered(uid="11111111-aaaa", gpus="1"):
    found = pod(gpus=gpus, uid=uid)
    found["metadata"]["annotations"] = {labels.BID_NAME: ORDER}
    return found


def test_an_order_waits_for_its_pod_and_is_let_go_of_after_it():
    assert scheduling.plan(snapshot(leases=[bought()], nodes=[node()])) == []
    running = pod(gpus="1", nodeName="lease-1")
    running["status"]["phase"] = "Running"
    used = snapshot(pods=[running], leases=[bought("Active")], nodes=[node()])
    assert scheduling.plan(used) == []
    assert words(scheduling.plan(snapshot(leases=[bought("Active")], nodes=[node()]))) == [
        "ReleaseLease"
    ]


def test_a_pod_that_names_an_order_runs_on_what_it_bought():
    (bind,) = scheduling.plan(snapshot(pods=[ordered()], leases=[bought()], nodes=[node()]))
    assert bind == BindPod(ordered(), "lease-1")
    (gone,) = scheduling.plan(snapshot(pods=[ordered()]))
    assert gone.reason == "NoSuchBid"
    assert "no order of that name" in gone.message
    (large,) = scheduling.plan(
        snapshot(pods=[ordered(gpus="2")], leases=[bought()], nodes=[node()])
    )
    assert large.reason == "LeaseInUse"


def test_a_bid_may_be_called_as_orders_are():
    """Names are no protocol: what a pod names is looked up, not parsed."""
    by_hand = {
        "metadata": {"name": ORDER, "namespace": "default", "uid": "b"},
        "spec": {"gpus": 1, "maxPrice": "1.00"},
    }
    won = lease_of(by_hand)
    won["spec"] |= {"origin": "bid", "devices": [{"name": "g"}]}
    won["spec"]["bid"] |= {"uid": "on-the-host"}
    (bind,) = scheduling.plan(
        snapshot(pods=[ordered()], bids=[by_hand], leases=[won], nodes=[node()])
    )
    assert bind == BindPod(ordered(), "lease-1")
    (waits,) = scheduling.plan(snapshot(pods=[ordered()], bids=[by_hand]))
    assert waits.reason != "NoSuchBid"


def test_an_order_of_the_version_before_is_known_by_its_uid():
    lease = bought()
    del lease["spec"]["origin"]
    assert scheduling.plan(snapshot(leases=[lease], nodes=[node()])) == []


# One decision at a time.


def test_a_pending_pod_gets_a_bid_with_its_terms():
    asked = pod()
    asked["metadata"]["annotations"] = {labels.MAX_PRICE: "2.10", labels.POOL: "h100"}
    terms = {"gpus": 2, "maxPrice": "2.10", "pool": "h100"}
    assert bid_for(asked)["spec"] == {**terms, "oneNode": True, "spread": True}


def test_a_pod_that_wants_one_link_gets_a_bid_for_a_block():
    asked = pod()
    asked["metadata"]["annotations"] = {labels.LINK: "domain"}
    assert bid_for(asked)["spec"] == {"gpus": 2, "maxPrice": "1.00"}


def test_the_bid_ends_with_its_pod():
    (owner,) = bid_for(pod())["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("Pod", "11111111-aaaa", True)


@pytest.mark.parametrize(
    "name",
    ["a", "n" * 253, "n" * 53 + ".n", "n" * 53 + "-n", "n" * 62 + ".n", "n" * 61 + "--n", "a.b.c"],
)
def test_a_bid_of_any_pod_has_a_valid_name_and_labels(name):
    """A plane refuses an invalid one, and then the pod waits for ever."""
    metadata = bid_for(pod(name=name))["metadata"]
    assert not subdomain_problems(metadata["name"])
    for value in metadata["labels"].values():
        assert not value_problems(value)


@pytest.mark.parametrize(
    "change",
    [
        {"spec": {"containers": [], "nodeName": "elsewhere"}},
        {"spec": {"containers": [], "schedulingGates": [{"name": "quota"}]}},
        {"status": {"phase": "Succeeded"}},
        {"status": {"phase": "Failed"}},
        {"metadata": {**pod()["metadata"], "deletionTimestamp": "now"}},
    ],
)
def test_a_pod_that_does_not_wait_for_us_gets_no_bid(change):
    assert scheduling.plan(snapshot(pods=[{**pod(), **change}])) == []


def test_a_pod_that_asks_for_no_gpu_is_told_so():
    (operation,) = scheduling.plan(snapshot(pods=[pod(gpus="0")]))
    assert isinstance(operation, Explain)
    assert operation.reason == "NoNodeWithoutGpu"
    for remedy in ("nvidia.com/gpu", "offers: {cpu: 4"):
        assert remedy in operation.message


def test_a_pod_without_a_gpu_runs_beside_a_lease_that_is_paid_for_and_does_not_keep_it():
    bid = bid_for(pod(), "Won")
    running = pod(nodeName="lease-1")
    helper = pod("helper", uid="22222222-bbbb", gpus="0")
    seen = {"bids": [bid], "nodes": [node()]}
    for phase, binds in (("Pending", False), ("Active", True)):
        planned = scheduling.plan(
            snapshot(pods=[running, helper], leases=[lease_of(bid, phase)], **seen)
        )
        assert (BindPod(helper, "lease-1") in planned) == binds
    helper["spec"]["nodeName"] = "lease-1"
    over = {**running, "status": {"phase": "Succeeded"}}
    planned = scheduling.plan(
        snapshot(pods=[over, helper], leases=[lease_of(bid, "Active")], **seen)
    )
    assert any(isinstance(one, ReleaseLease) for one in planned)


def test_a_pod_that_does_not_fit_the_node_of_its_lease_is_told_so():
    asked = pod()
    asked["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "5000"}
    bid = bid_for(asked, "Won")
    small = node()
    small["status"]["allocatable"]["cpu"] = "16"
    (operation,) = scheduling.plan(
        snapshot(pods=[asked], bids=[bid], leases=[lease_of(bid)], nodes=[small])
    )
    assert operation.reason == "DoesNotFit"
    assert "Insufficient cpu" in operation.message


def test_one_pod_that_cannot_be_read_does_not_stop_the_others():
    """kube-apiserver admits `1k` GPUs; our own planes refuse it."""
    bad, good = pod(gpus="1k"), pod(name="good", uid="22222222")
    explained, created = scheduling.plan(snapshot(pods=[bad, good]))
    assert isinstance(explained, Explain)
    assert (explained.reason, explained.pod) == ("BadAsk", bad)
    assert isinstance(created, CreateBid)


def test_a_won_lease_takes_its_pod_once_its_node_is_there():
    bid = bid_for(pod(), "Won")
    state = {"pods": [pod()], "bids": [bid], "leases": [lease_of(bid)]}
    assert words(scheduling.plan(snapshot(**state))) == ["Explain"]
    (operation,) = scheduling.plan(snapshot(**state, nodes=[node()]))
    assert operation == BindPod(pod(), "lease-1")


def test_a_lease_is_found_before_its_bid_says_so():
    bid = bid_for(pod())
    planned = scheduling.plan(
        snapshot(pods=[pod()], bids=[bid], leases=[lease_of(bid)], nodes=[node()])
    )
    assert words(planned) == ["BindPod"]


def test_a_tainted_node_takes_nothing():
    bid = bid_for(pod(), "Won")
    nodes = [node(taints=[{"key": labels.RECLAIM_TAINT}])]
    planned = scheduling.plan(
        snapshot(pods=[pod()], bids=[bid], leases=[lease_of(bid)], nodes=nodes)
    )
    assert words(planned) == ["Explain"]


def test_a_node_that_has_a_pod_takes_no_second():
    bid, by_hand = bid_for(pod(), "Won"), pod(name="mine", uid="22222222", nodeName="lease-1")
    state = {"bids": [bid], "leases": [lease_of(bid)], "nodes": [node()]}
    assert words(scheduling.plan(snapshot(pods=[pod(), by_hand], **state))) == ["Explain"]
    over = {**by_hand, "status": {"phase": "Succeeded"}}
    assert words(scheduling.plan(snapshot(pods=[pod(), over], **state))) == ["BindPod"]


def test_devices_whose_last_holder_still_drains_are_waited_for():
    bid = bid_for(pod(), "Won")
    (operation,) = scheduling.plan(
        snapshot(pods=[pod()], bids=[bid], leases=[lease_of(bid, ready=False)])
    )
    assert isinstance(operation, Explain)
    assert "last holder" in operation.message


@pytest.mark.parametrize("phase", ["Waiting", "Refused"])
def test_a_bid_that_has_not_won_explains_itself(phase):
    (operation,) = scheduling.plan(snapshot(pods=[pod()], bids=[bid_for(pod(), phase)]))
    bid = as_bid(bid_for(pod(), phase))
    assert operation == Explain(pod(), REASONS[phase], f"it is {phase}", bid)


def test_a_price_that_changes_while_the_pod_waits_changes_the_bid():
    dearer = pod()
    dearer["metadata"]["annotations"] = {labels.MAX_PRICE: "3.00"}
    waits = bid_for(pod(), "Waiting")
    first, second = scheduling.plan(snapshot(pods=[dearer], bids=[waits]))
    assert first == scheduling.PriceBid(as_bid(waits), "3.00")
    assert isinstance(second, Explain)


def test_a_bid_without_a_round_says_so():
    (operation,) = scheduling.plan(snapshot(pods=[pod()], bids=[bid_for(pod())]))
    assert isinstance(operation, Explain)
    assert operation.reason == "Bidding"


def test_a_bid_that_ended_is_made_anew():
    """Also when the cache of leases is late and still shows what the bid had won."""
    bid = bid_for(pod(), "Ended")
    assert scheduling.plan(snapshot(pods=[pod()], bids=[bid])) == [DeleteBid(as_bid(bid))]
    late = snapshot(pods=[pod()], bids=[bid], leases=[lease_of(bid)], nodes=[node()])
    assert scheduling.plan(late) == [DeleteBid(as_bid(bid))]


@pytest.mark.parametrize(
    "left",
    [
        [],
        [{**pod(), "status": {"phase": "Succeeded"}}],
        [{**pod(), "metadata": {**pod()["metadata"], "deletionTimestamp": "now"}}],
    ],
    ids=["gone", "finished", "deleted before it was bound"],
)
def test_a_bid_whose_pod_no_longer_waits_is_ended(left):
    bid = bid_for(pod())
    assert scheduling.plan(snapshot(pods=left, bids=[bid])) == [DeleteBid(as_bid(bid))]


def test_a_bid_whose_pod_runs_or_is_stopping_is_kept():
    running = pod(nodeName="lease-1")
    leaving = {**running, "metadata": {**running["metadata"], "deletionTimestamp": "now"}}
    for found in (running, leaving):
        assert scheduling.plan(snapshot(pods=[found], bids=[bid_for(pod(), "Won")])) == []


def test_a_bid_written_by_hand_is_left_alone_and_so_is_what_it_won():
    bid = bid_for(pod())
    del bid["metadata"]["labels"]
    assert scheduling.plan(snapshot(bids=[bid], leases=[lease_of(bid)])) == []
    assert words(scheduling.plan(snapshot(leases=[lease_of(bid)]))) == ["ReleaseLease"]


@pytest.mark.parametrize("phase", ["Pending", "Active", "Draining"])
def test_a_lease_that_no_pod_uses_is_released(phase):
    lease = lease_of(bid_for(pod()), phase)
    assert scheduling.plan(snapshot(leases=[lease])) == [ReleaseLease(as_lease(lease))]
    used = [{**pod(nodeName="lease-1"), "status": {"phase": "Running"}}]
    assert scheduling.plan(snapshot(pods=used, leases=[lease])) == []
    over = [{**used[0], "status": {"phase": "Failed"}}]
    assert words(scheduling.plan(snapshot(pods=over, leases=[lease]))) == ["ReleaseLease"]


def test_a_lease_that_was_only_just_made_is_not_idle():
    """The mirror is created first and given its status next: in between it says nothing."""
    bid = bid_for(pod())
    planned = scheduling.plan(
        snapshot(pods=[pod()], bids=[bid], leases=[lease_of(bid, phase=None)])
    )
    assert words(planned) == ["Explain"]


@pytest.mark.parametrize("phase", ["Pending", "Active", "Draining"])
def test_a_lease_is_kept_for_its_pod_when_one_cache_is_late(phase):
    """Not pending: the pod's binding is not seen yet. No bid: the bid is not seen yet."""
    lease = lease_of(bid_for(pod()), phase)
    late_pod = snapshot(pods=[pod()], bids=[bid_for(pod())], leases=[lease])
    late_bid = snapshot(pods=[pod()], leases=[lease])
    for seen in (late_pod, late_bid):
        assert "ReleaseLease" not in words(scheduling.plan(seen))


# Everything in any order.


class Plane:
    """The truth in `now`, what each informer shows in `seen`, and what can happen next."""

    def __init__(self):
        self.now = {kind: {} for kind in KINDS}
        self.seen = {kind: {} for kind in KINDS}
        self.numbers = itertools.count(1)

    def possible(self):
        """Every step that would change something; likelier ones more than once."""
        yield from [self.schedule] * 4
        yield from [partial(self.catch_up, kind) for kind in KINDS if self.is_late(kind)] * 2
        if not any(map(scheduling.is_pending, self.now["pods"].values())):
            yield from [partial(self.create_pod, gpus) for gpus in ("1", "1", "1", "0", "1k")]
        if not any(name.startswith("hand") for name in self.now["bids"]):
            yield self.bid_by_hand
        for bid in self.now["bids"].values():
            if bid.get("status", {}).get("phase") not in ("Won", "Ended"):
                yield from [partial(self.win, bid)] * 4
        for lease in self.now["leases"].values():
            yield from self.possible_for_lease(lease)
        for found in self.now["pods"].values():
            yield from self.possible_for_pod(found)

    def possible_for_lease(self, lease):
        phase, live = lease["status"].get("phase"), self.users_of(lease)
        if not phase:
            yield from [
                partial(self.put, "leases", lease, status={"phase": "Pending", "ready": False})
            ] * 3
        elif not lease["status"]["ready"]:
            yield from [partial(self.put, "leases", lease, status={"ready": True})] * 3
        elif lease["metadata"]["name"] not in self.now["nodes"]:
            yield from [partial(self.show_node, lease)] * 3
        if phase == "Pending" and live:
            yield partial(self.put, "leases", lease, status={"phase": "Active"})
        if phase == "Active":
            yield partial(self.drain, lease)
        if not live and (phase == "Pending" or lease["metadata"].get("deletionTimestamp")):
            yield partial(self.release, lease)

    def possible_for_pod(self, found):
        deleted = found["metadata"].get("deletionTimestamp")
        if not found["spec"].get("nodeName"):
            yield partial(self.gone, found)
        elif found["status"]["phase"] in ("Pending", "Running"):
            yield partial(self.put, "pods", found, status={"phase": "Running"})
            yield partial(self.put, "pods", found, status={"phase": "Succeeded"})
        elif deleted:
            yield partial(self.gone, found)
        if not deleted:
            yield partial(self.put, "pods", found, metadata={"deletionTimestamp": "now"})

    # The user.

    def create_pod(self, gpus):
        uid = f"{next(self.numbers):08d}"
        # A name comes back often: a pod and its successor must not be taken for one.
        name = "same" if self.count("same") == 0 else f"pod-{uid}"
        self.now["pods"][uid] = pod(name=name, uid=uid, gpus=gpus)

    def count(self, name):
        return sum(found["metadata"]["name"] == name for found in self.now["pods"].values())

    def bid_by_hand(self):
        name = f"hand-{next(self.numbers)}"
        metadata = {"name": name, "namespace": "default", "uid": name}
        self.now["bids"][name] = {"metadata": metadata, "spec": {}}

    # The exchange, and the controller that shows its leases.

    def win(self, bid):
        name = f"lease-{next(self.numbers)}"
        won = {"won by": bid["metadata"]["uid"]}
        self.now["leases"][name] = {**lease_of(bid, phase=None, name=name), **won}
        self.put("bids", bid, status={"phase": "Won", "reason": "Won", "message": "won"})

    def show_node(self, lease):
        name = lease["metadata"]["name"]
        self.now["nodes"][name] = node(name)

    def drain(self, lease):
        self.put("leases", lease, status={"phase": "Draining"})
        for found in self.live_on(lease):
            self.put("pods", found, metadata={"deletionTimestamp": "now"})

    def release(self, lease):
        name = lease["metadata"]["name"]
        for found in self.live_on(lease):  # without GPUs, beside it: they do not keep it
            self.gone(found)
        self.now["nodes"].pop(name, None)
        del self.now["leases"][name]
        bid = self.now["bids"].get(lease["won by"])
        if bid is not None:
            self.put("bids", bid, status={"phase": "Ended", "reason": "Released", "message": "x"})

    # The scheduler.

    def is_late(self, kind):
        return self.seen[kind] != self.now[kind]

    def catch_up(self, kind):
        self.seen[kind] = dict(self.now[kind])

    def schedule(self):
        self.carry_out(self.planned())

    def planned(self):
        return scheduling.plan(snapshot(**{kind: self.seen[kind].values() for kind in KINDS}))

    def carry_out(self, planned):
        for operation in planned:
            match operation:
                case CreateBid(bid=bid):
                    self.create_bid(bid)
                case DeleteBid(bid=bid):
                    self.now["bids"].pop(bid.uid, None)
                case BindPod(pod=bound, node=name):
                    self.bind(bound, name)
                case ReleaseLease(lease=lease):
                    self.ask_for_release(lease.name)

    def create_bid(self, bid):
        uid, name = bid["metadata"]["labels"][labels.POD_UID], bid["metadata"]["name"]
        if any(known["metadata"]["name"] == name for known in self.now["bids"].values()):
            return  # AlreadyExists
        if uid not in self.now["pods"]:
            return  # the garbage collector takes it at once
        key = f"bid-{next(self.numbers)}"
        self.now["bids"][key] = {**bid, "metadata": {**bid["metadata"], "uid": key}}
        assert sum(self.is_for(known, uid) for known in self.now["bids"].values()) == 1, "two bids"

    def bind(self, seen, name):
        found = self.now["pods"].get(seen["metadata"]["uid"])
        if found is None or found["spec"].get("nodeName") or scheduling.is_deleted(found):
            return  # NotFound, Conflict
        lease = self.now["leases"].get(name)
        self.put("pods", found, spec={"nodeName": name})
        if lease is None:  # the lease ended meanwhile: its controller removes the pod
            self.gone(found)
            return
        if not asks_for_gpus(found):
            return  # it may run beside any lease that is paid for, with others
        mine = host_name("default", scheduling.bid_name(found))
        assert lease["spec"]["bid"]["name"] == mine, "bound to what it did not win"
        assert len(self.users_of(lease)) == 1, "two pods on one node"

    def ask_for_release(self, name):
        lease = self.now["leases"].get(name)
        if lease is None:
            return
        assert not self.users_of(lease), "released under a pod that uses it"
        # A cache so late that it has not seen the bid loses its lease: the bid can win again.
        by_hand = lease["won by"].startswith("hand") and lease["won by"] in self.seen["bids"]
        assert not by_hand, "released under its author"
        for found in self.now["pods"].values():
            mine = host_name("default", scheduling.bid_name(found))
            waits = scheduling.is_pending(found) and lease["spec"]["bid"]["name"] == mine
            assert not waits, "released under a pod that waits for it"
        self.put("leases", lease, metadata={"deletionTimestamp": "now"})

    def comes_to_rest(self):
        for _ in range(5):
            for kind in KINDS:
                self.catch_up(kind)
            planned = self.planned()
            if all(isinstance(operation, Explain) for operation in planned):
                break
            self.carry_out(planned)
        pending = [found for found in self.now["pods"].values() if scheduling.is_pending(found)]
        for bid in self.now["bids"].values():
            uid = bid["metadata"].get("labels", {}).get(labels.POD_UID)
            owner = self.now["pods"].get(uid)
            useful = uid is None or owner in pending or (owner and owner["spec"].get("nodeName"))
            assert useful, "a bid for a pod that does not want it"
            assert not owner or owner["status"]["phase"] != "Succeeded"
            ended = bid.get("status", {}).get("phase") == "Ended"
            assert not (ended and owner in pending), "it waits with a bid that cannot win"
        assert [operation.pod for operation in planned] == pending, "each says why it waits"
        for lease in self.now["leases"].values():
            by_hand = lease["won by"] in self.now["bids"] and lease["won by"].startswith("hand")
            used = lease["metadata"].get("deletionTimestamp") or self.users_of(lease) or by_hand
            wanted = any(self.is_for_lease(found, lease) for found in pending)
            assert used or wanted or not lease["status"], "nobody uses it, and it is kept"

    # Words.

    def is_for(self, bid, uid):
        return bid["metadata"].get("labels", {}).get(labels.POD_UID) == uid

    def is_for_lease(self, found, lease):
        return lease["spec"]["bid"]["name"] == host_name("default", scheduling.bid_name(found))

    def put(self, kind, obj, **parts):
        name = obj["metadata"]["name"] if kind == "leases" else obj["metadata"]["uid"]
        obj = self.now[kind][name]
        changed = {part: {**obj.get(part, {}), **parts[part]} for part in parts}
        self.now[kind][name] = {**obj, **changed}

    def gone(self, found):
        uid = found["metadata"]["uid"]
        del self.now["pods"][uid]
        bids = self.now["bids"]
        self.now["bids"] = {key: bid for key, bid in bids.items() if not self.is_for(bid, uid)}

    def live_on(self, lease):
        name = lease["metadata"]["name"]
        return [found for found in self.now["pods"].values() if scheduling.is_live_on(found, name)]

    def users_of(self, lease):
        """The live pods on its GPUs; those without GPUs may run beside them."""
        return list(filter(asks_for_gpus, self.live_on(lease)))


def asks_for_gpus(found):
    (container,) = found["spec"]["containers"]
    return container["resources"]["limits"][labels.GPU_RESOURCE] != "0"


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 2**32), st.integers(10, 150))
def test_any_order_of_events_keeps_the_rules_and_comes_to_rest(seed, steps):
    plane, dice = Plane(), random.Random(seed)
    for _ in range(steps):
        dice.choice(list(plane.possible()))()
    plane.comes_to_rest()


@settings(max_examples=200, deadline=None)
@example(seed=522, steps=100)
@example(seed=766, steps=100)
@given(st.integers(0, 2**32), st.integers(10, 100))
def test_any_part_of_a_plan_in_any_order_comes_to_the_same_end(seed, steps):
    """The controller may be killed between any two operations."""
    plane, dice = Plane(), random.Random(seed)
    for _ in range(steps):
        dice.choice(list(plane.possible()))()
        planned = plane.planned()
        plane.carry_out(dice.sample(planned, dice.randint(0, len(planned))))
    plane.comes_to_rest()
