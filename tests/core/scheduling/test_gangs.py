"""Which pods are a gang, and that they are had together or not at all."""

import itertools
import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bidplane.api import labels
from bidplane.api.agent import Strategy
from bidplane.core import scheduling
from bidplane.core.hosting.translation import host_name
from bidplane.core.scheduling import (
    BindPod,
    CreateBid,
    DeleteBid,
    Explain,
    PlaneSnapshot,
    PriceBid,
    ReleaseLease,
    TellGroup,
)
from bidplane.core.scheduling.groups import COSCHEDULING, KAI, VOLCANO
from core.structs import as_bid, as_lease

NAMES = {
    COSCHEDULING.kind: ("labels", "scheduling.x-k8s.io/pod-group"),
    VOLCANO.kind: ("annotations", "scheduling.k8s.io/group-name"),
    KAI.kind: ("annotations", "pod-group-name"),
}


def pod(name, *, gpus="1", owner=None, labels_=None, **annotations):
    metadata = {
        "name": name,
        "namespace": "default",
        "uid": f"uid-of-{name}",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "annotations": annotations,
        "labels": labels_ or {},
    }
    if owner is not None:
        reference = {"kind": owner["kind"], "controller": True, "apiVersion": "batch/v1"}
        metadata["ownerReferences"] = [
            {**reference, "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}
        ]
    limits = {"limits": {labels.GPU_RESOURCE: gpus}}
    return {
        "metadata": metadata,
        "spec": {"containers": [{"name": "main", "resources": limits}]},
        "status": {"phase": "Pending"},
    }


def job(parallelism, completions, mode="Indexed", **status):
    return {
        "kind": "Job",
        "metadata": {"name": "train", "namespace": "default", "uid": "0b5e55ed-job"},
        "spec": {"parallelism": parallelism, "completions": completions, "completionMode": mode},
        "status": status,
    }


def group(kind, least, **spec):
    return {
        "metadata": {"name": "ranks", "namespace": "default", "uid": "c0ffee00-group"},
        "spec": {"minMember": least, **spec},
    } | {"kind": kind.kind}


def in_group(kind, name, **more):
    where, key = NAMES[kind]
    if where == "labels":
        return pod(name, labels_={key: "ranks"}, **more)
    return pod(name, **{key: "ranks"}, **more)


def marked(found, **annotations):
    marks = {f"bidplane.dev/{key.replace('_', '-')}": text for key, text in annotations.items()}
    found["metadata"]["annotations"] |= marks
    return found


def plan(pods, **more):
    seen = {"bids": [], "leases": [], "nodes": [], "max_price": "1.00", **more}
    seen["bids"] = [as_bid(bid) for bid in seen["bids"]]
    seen["leases"] = [as_lease(lease) for lease in seen["leases"]]
    return scheduling.plan(PlaneSnapshot(pods=pods, **seen))


def bids(operations):
    return [one.bid for one in operations if isinstance(one, CreateBid)]


def reasons(operations):
    return [one.reason for one in operations if isinstance(one, Explain)]


# Which pods are a gang.


def test_an_indexed_job_that_runs_all_its_indexes_at_once_is_a_gang():
    ranks = job(2, 2)
    first, second = pod("train-0", owner=ranks), pod("train-1", owner=ranks)
    assert reasons(plan([first], jobs=[ranks])) == ["WaitingForGang"]
    (bid,) = bids(plan([first, second], jobs=[ranks]))
    assert (bid["spec"]["gpus"], bid["spec"]["blocks"]) == (1, 2)
    assert bid["metadata"]["name"] == "train-0b5e55ed-gang"


@pytest.mark.parametrize(
    "work",
    [job(2, 2, "NonIndexed"), job(2, 6), job(1, 1), job(2, None, None)],
    ids=["non-indexed", "an array", "one pod", "a work queue"],
)
def test_a_job_that_works_through_a_queue_is_none(work):
    made = bids(plan([pod("a", owner=work), pod("b", owner=work)], jobs=[work]))
    assert [bid["spec"].get("blocks") for bid in made] == [None, None]


def test_an_annotation_says_otherwise():
    ranks, queue = job(2, 2), job(4, None, None)
    alone = [marked(pod(name, owner=ranks), gang_size="1") for name in "ab"]
    assert [bid["spec"].get("blocks") for bid in bids(plan(alone, jobs=[ranks]))] == [None, None]
    together = [marked(pod(name, owner=queue), gang_size="3") for name in "abcd"]
    planned = plan(together, jobs=[queue])
    (bid,) = bids(planned)
    assert bid["spec"]["blocks"] == 3
    assert reasons(planned) == ["WaitingForGang"], "the fourth comes after the others"


def test_a_job_of_more_pods_than_can_be_won_together_is_told_so():
    large = job(200, 200)
    (said,) = plan([pod("a", owner=large)], jobs=[large])
    assert said.reason == "GangTooLarge"
    assert labels.GANG_SIZE in said.message


@pytest.mark.parametrize("kind", NAMES, ids=lambda kind: kind.group)
def test_a_pod_group_is_a_gang_of_its_least_members(kind):
    pods = [in_group(kind, name) for name in "abc"]
    groups = {kind: [group(kind, 2)]}
    planned = plan(pods, groups=groups)
    (bid,) = bids(planned)
    assert bid["spec"]["blocks"] == 2
    assert reasons(plan(pods[:1], groups=groups)) == ["WaitingForGang"]


@pytest.mark.parametrize("kind", NAMES, ids=lambda kind: kind.group)
def test_a_pod_group_counts_where_its_kind_is_installed(kind):
    pods = [in_group(kind, name) for name in "ab"]
    assert len(bids(plan(pods))) == 2, "nobody installed the kind: a name is a name"
    said = plan(pods, groups={kind: []})
    assert reasons(said) == ["NoSuchPodGroup"] * 2
    assert kind.group in said[0].message
    assert len(bids(plan(pods, groups={kind: [group(kind, 1)]}))) == 2


def test_what_a_pod_group_cannot_be_here_is_said():
    pods = [in_group(KAI.kind, "a")]
    parts = group(KAI.kind, None, minSubGroup=2, subGroups=[{"name": "x", "minMember": 2}])
    assert reasons(plan(pods, groups={KAI.kind: [parts]})) == ["BadPodGroup"]
    assert reasons(plan(pods, groups={KAI.kind: [group(KAI.kind, 900)]})) == ["BadPodGroup"]


def test_pods_that_differ_are_told_so():
    ranks = job(2, 2)
    pods = [pod("a", owner=ranks), pod("b", owner=ranks, gpus="2")]
    assert set(reasons(plan(pods, jobs=[ranks]))) == {"GangDiffers"}


def test_ranks_that_have_ended_are_not_waited_for():
    """One of four is done, the others were outbid: three are a gang."""
    ranks = job(4, 4, succeeded=1)
    pods = [pod(f"train-{n}", owner=ranks) for n in range(1, 4)]
    (bid,) = bids(plan(pods, jobs=[ranks]))
    assert bid["spec"]["blocks"] == 3
    done = pod("train-0", owner=ranks)
    done["status"]["phase"] = "Succeeded"
    (bid,) = bids(plan([done, *pods], jobs=[job(4, 4)]))  # its status is a moment late
    assert bid["spec"]["blocks"] == 3


def test_a_new_bid_is_not_taken_for_the_last_one_whose_leases_still_drain():
    """Both have one name: deleting it would go on for as long as they drain."""
    ranks = job(2, 2)
    pods = [pod(f"train-{n}", owner=ranks) for n in range(2)]
    (bid,) = bids(plan(pods, jobs=[ranks]))
    bid = {**bid, "metadata": {**bid["metadata"], "uid": "b2"}}
    on_host = {"name": host_name("default", bid["metadata"]["name"])}
    leases = [
        {
            "metadata": {"name": f"old-{part}", "namespace": "default"},
            "spec": {"bid": on_host, "part": part, "parts": 2},
            "status": {"phase": "Draining", "ready": True},
        }
        for part in range(2)
    ]
    planned = plan(pods, jobs=[ranks], bids=[bid], leases=leases)
    assert [type(one) for one in planned] == [Explain, Explain, ReleaseLease, ReleaseLease]


def test_a_gang_offers_what_its_agents_strategy_says():
    ranks = job(2, 2)
    pods = [pod(f"train-{n}", owner=ranks) for n in range(2)]
    more = {"jobs": [ranks], "strategy": Strategy.THRIFTY, "now": 1767225600.0}
    (bid,) = bids(plan(pods, **more))
    low = float(bid["spec"]["maxPrice"])
    assert low < 1
    stands = {**bid, "metadata": {**bid["metadata"], "uid": "b"}}
    later = plan(pods, **{**more, "now": 1767225600.0 + 3000}, bids=[stands])
    (raised,) = [one for one in later if isinstance(one, PriceBid)]
    assert float(raised.max_price) > low


# What a PodGroup is told.


@pytest.mark.parametrize(
    ("kind", "phases", "said"),
    [
        (COSCHEDULING.kind, ["Pending", "Pending"], {"phase": "Pending"}),
        (COSCHEDULING.kind, ["Running", "Running"], {"phase": "Running", "running": 2}),
        (COSCHEDULING.kind, ["Succeeded", "Succeeded"], {"phase": "Finished", "succeeded": 2}),
        (COSCHEDULING.kind, ["Running", "Failed"], {"phase": "Failed", "failed": 1}),
        (VOLCANO.kind, ["Pending", "Pending"], {"phase": "Inqueue"}),
        (VOLCANO.kind, ["Running", "Running"], {"phase": "Running", "running": 2}),
        (VOLCANO.kind, ["Succeeded", "Failed"], {"phase": "Completed"}),
        (KAI.kind, ["Pending", "Running"], {"pending": 1, "running": 1}),
    ],
)
def test_a_pod_group_is_told_how_its_pods_are(kind, phases, said):
    pods = []
    for number, phase in enumerate(phases):
        pods.append(in_group(kind, f"p{number}"))
        pods[-1]["status"]["phase"] = phase
        if phase != "Pending":
            pods[-1]["spec"]["nodeName"] = "gone"
    known = group(kind, 2)
    (told,) = [o for o in plan(pods, groups={kind: [known]}) if isinstance(o, TellGroup)]
    assert said.items() <= told.status.items()
    known["status"] = told.status
    again = plan(pods, groups={kind: [known]})
    assert not [one for one in again if isinstance(one, TellGroup)], "told once"


def test_who_was_given_a_block_of_its_gangs_does_not_bid_for_itself_any_more():
    plane = Plane(random.Random(0), 2, 3)
    plane.carry_out(plane.planned())
    (of_gang,) = plane.bids.values()
    while len(plane.leases) < 2:
        plane.win(of_gang)
    plane.carry_out(plane.planned())
    last = next(name for name, one in plane.pods.items() if not one["spec"].get("nodeName"))
    plane.carry_out(plane.planned())
    assert f"{last}-uid-of-p" in plane.bids, "it is more than the gang needs"
    first = plane.seated()[0]["metadata"]["name"]
    plane.pods[first]["status"]["phase"] = "Failed"
    plane.carry_out([one for one in plane.planned() if isinstance(one, BindPod)])
    assert plane.pods[last]["spec"]["nodeName"] in plane.leases
    deleted = [one.bid.name for one in plane.planned() if isinstance(one, DeleteBid)]
    assert deleted == [f"{last}-uid-of-p"]


# Together, or not at all, whatever happens.


class Plane:
    """One gang and its market, in dictionaries: `size` must run together, of `count` pods."""

    def __init__(self, dice, size, count):
        self.dice, self.size = dice, size
        self.pods, self.bids, self.leases = {}, {}, {}
        self.numbers = itertools.count(1)
        for _ in range(count):
            self.add()

    def add(self):
        name = f"p{next(self.numbers):03d}"
        self.pods[name] = in_group(VOLCANO.kind, name)

    def planned(self):
        return plan(
            list(self.pods.values()),
            bids=list(self.bids.values()),
            leases=list(self.leases.values()),
            nodes=[
                {
                    "metadata": {"name": name},
                    "spec": {},
                    "status": {"allocatable": {"pods": "110"}},
                }
                for name in self.leases
            ],
            groups={VOLCANO.kind: [group(VOLCANO.kind, self.size)]},
        )

    def carry_out(self, operations):
        for operation in operations:
            match operation:
                case CreateBid(bid=bid):
                    name = bid["metadata"]["name"]
                    uid = f"bid-{next(self.numbers)}"
                    if name not in self.bids:
                        self.bids[name] = {**bid, "metadata": {**bid["metadata"], "uid": uid}}
                case DeleteBid(bid=bid):
                    self.bids.pop(bid.name, None)
                case BindPod(pod=found, node=name):
                    self.bind(found["metadata"]["name"], name)
                case ReleaseLease(lease=lease):
                    self.end(lease.spec.bid.name)

    def bind(self, name, node):
        lease = self.leases[node]
        assert not any(p["spec"].get("nodeName") == node for p in self.live()), "two on one block"
        won = [one for one in self.leases.values() if one["spec"]["bid"] == lease["spec"]["bid"]]
        assert len(won) == lease["spec"]["parts"], "a gang is bound when all of it is there"
        if lease["spec"]["parts"] == 1 and "-gang" not in lease["spec"]["bid"]["name"]:
            enough = len(self.seated()) >= self.least_left()
            assert enough or self.all_its_blocks_are_used(), "alone before the gang"
        found = self.pods[name]
        self.pods[name] = {**found, "spec": {**found["spec"], "nodeName": node}}

    def live(self):
        return [p for p in self.pods.values() if p["status"]["phase"] in ("Pending", "Running")]

    def seated(self):
        return [p for p in self.live() if p["spec"].get("nodeName")]

    def all_its_blocks_are_used(self):
        """The gang's own bid has nothing left to give: who is still missing asks beside it."""
        its = {n for n, one in self.leases.items() if "-gang" in one["spec"]["bid"]["name"]}
        return bool(its) and its <= {p["spec"]["nodeName"] for p in self.seated()}

    def least_left(self):
        done = sum(p["status"]["phase"] == "Succeeded" for p in self.pods.values())
        return max(0, self.size - done)

    def win(self, bid):
        """Its blocks are shown one after the other, and maybe not all yet."""
        uid, blocks = bid["metadata"]["uid"], bid["spec"].get("blocks", 1)
        on_host = host_name("default", bid["metadata"]["name"])
        shown = [k for k in range(blocks) if f"{uid}-{k}" not in self.leases]
        for part in shown[: self.dice.randint(1, len(shown))] if shown else ():
            self.leases[f"{uid}-{part}"] = {
                "metadata": {"name": f"{uid}-{part}", "namespace": "default"},
                "spec": {"bid": {"name": on_host}, "part": part, "parts": blocks},
                "status": {"phase": "Active", "ready": True},
            }
        name = bid["metadata"]["name"]
        self.bids[name] = {**bid, "status": {"phase": "Won", "reason": "Won", "message": "."}}
        self.bids[name]["status"]["lease"] = uid

    def end(self, on_host):
        """A lease ends as a whole; its pods go, and their controller makes others."""
        over = {n for n, one in self.leases.items() if one["spec"]["bid"]["name"] == on_host}
        for name in [n for n, p in self.pods.items() if p["spec"].get("nodeName") in over]:
            if self.pods[name]["status"]["phase"] in ("Pending", "Running"):
                del self.pods[name]
                self.add()
        for name in over:
            del self.leases[name]
        for name, bid in self.bids.items():
            if host_name("default", name) == on_host:
                status = {"phase": "Ended", "reason": "Released", "message": "."}
                self.bids[name] = {**bid, "status": status}

    def happens(self):
        """What the world does."""
        waiting = [b for b in self.bids.values() if not b.get("status")]
        partly = [
            b
            for b in self.bids.values()
            if (b.get("status") or {}).get("phase") == "Won"
            and len([n for n in self.leases if n.startswith(b["metadata"]["uid"])])
            < b["spec"].get("blocks", 1)
        ]
        what = self.dice.random()
        if what < 0.5 and waiting + partly:
            self.win(self.dice.choice(waiting + partly))
        elif what < 0.6 and self.seated():
            name = self.dice.choice(self.seated())["metadata"]["name"]
            phase = self.dice.choice(["Running", "Running", "Succeeded", "Failed"])
            self.pods[name] = {**self.pods[name], "status": {"phase": phase}}
            if phase == "Failed":
                self.add()
        elif what < 0.65 and self.leases:
            self.end(self.dice.choice(list(self.leases.values()))["spec"]["bid"]["name"])
        elif what < 0.7 and self.live():
            name = self.dice.choice(self.live())["metadata"]["name"]
            del self.pods[name]
            self.add()

    def comes_to_rest(self):
        for _ in range(60):
            self.carry_out(self.planned())
            for bid in list(self.bids.values()):
                if (bid.get("status") or {}).get("phase") in (None, "Won"):
                    self.win(bid)
            if all(p["spec"].get("nodeName") for p in self.live()):
                break
        else:
            raise AssertionError(self.planned())
        self.carry_out(self.planned())
        used = {p["spec"]["nodeName"].rpartition("-")[0] for p in self.live()}
        over = {"phase": "Ended", "reason": "Released", "message": "."}
        stand = {b["metadata"]["uid"] for b in self.bids.values() if b["status"] != over}
        assert stand == used, "a bid for each who holds, and no other"


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 4), st.integers(0, 3), st.integers(1, 60))
@example(seed=154, size=4, more=2, steps=37)  # lost a place that was not of the gang's bid
def test_a_gang_is_had_together_and_who_is_more_comes_after(seed, size, more, steps):
    dice = random.Random(seed)
    plane = Plane(dice, size, size + more)
    for _ in range(steps):
        plane.happens()
        planned = plane.planned()
        plane.carry_out(dice.sample(planned, dice.randint(0, len(planned))))
    plane.comes_to_rest()
