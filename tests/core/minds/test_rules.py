"""The mind `rules`: what it intends, what it leaves alone, and that it does not repeat itself."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidplane.api.gate.action import Action, ActionKind
from bidplane.api.gate.proposal import ProposalPhase
from bidplane.api.money import MICRO
from bidplane.api.times import rfc3339
from bidplane.core.gate.effects import prepare
from bidplane.core.gate.fleet import (
    FleetAgent,
    FleetLease,
    FleetNode,
    FleetPod,
    FleetPool,
    FleetState,
)
from bidplane.core.minds.observation import Intention, Observation, PastProposal, idle_nodes
from bidplane.core.minds.rules import DEFAULT_RULES, decide

NOW = 1_800_000_000.0
HOUR = 3600.0


def node(name: str, **fields: object) -> FleetNode:
    return FleetNode(name=name, pools=("h100",), devices=8, **fields)  # type: ignore[arg-type]


def lease(name: str = "l", **fields: object) -> FleetLease:
    given_fields = {
        "namespace": "agent-a",
        "name": name,
        "uid": f"u-{name}",
        "agent": "a",
        "pool": "h100",
        "node": "n1",
        "devices": 2,
        "rent": 3 * MICRO,
    }
    return FleetLease(**{**given_fields, **fields})  # type: ignore[arg-type]


def observe(
    *nodes: FleetNode,
    leases: tuple[FleetLease, ...] = (),
    waiting: int | None = 0,
    idle: float = 2 * HOUR,
    proposals: tuple[PastProposal, ...] = (),
) -> Observation:
    pool = FleetPool(name="h100", floor_price="0.20", idle_seconds=300, waiting=waiting)
    agents = (FleetAgent(name="a", refill="1", priority=1),)
    fleet = FleetState(nodes=nodes, leases=leases, pools=(pool,), agents=agents)
    seen = idle_nodes(fleet, {n.name: NOW - idle for n in nodes}, NOW)
    return Observation(at=NOW, fleet=fleet, proposals=proposals, idle_nodes=seen)


def kinds(intentions: list[Intention]) -> list[tuple[ActionKind, str]]:
    return [(x.action.kind, x.action.name) for x in intentions]


def past(action: Action, phase: ProposalPhase | None, ago: float = 60.0) -> PastProposal:
    return PastProposal(name="p", action=action, phase=phase, created=NOW - ago)


class TestParking:
    def test_idle_nodes_but_for_the_spare_one(self) -> None:
        intentions = decide(observe(node("n1"), node("n2"), node("n3")))
        assert kinds(intentions) == [
            (ActionKind.PARK_NODE, "n1"),
            (ActionKind.PARK_NODE, "n2"),
        ]
        assert intentions[0].reason == "nobody has used it for 120 minutes, and nobody waits"
        assert "pools h100: no bid waits" in intentions[0].evidence

    @pytest.mark.parametrize(
        "observation",
        [
            observe(node("n1"), node("n2"), idle=DEFAULT_RULES.park_after_seconds - 1),
            observe(node("n1"), node("n2"), waiting=1),
            observe(node("n1"), node("n2"), waiting=None),  # unknown
            observe(node("n1"), node("n2", ready=False)),  # n1 is the spare one
            observe(node("n1"), node("n2"), leases=(lease(), lease("m", node="n2"))),
        ],
    )
    def test_not_what_may_be_wanted(self, observation: Observation) -> None:
        assert decide(observation) == []

    def test_a_node_in_use_is_a_spare_one_too(self) -> None:
        assert kinds(decide(observe(node("n1"), node("n2"), leases=(lease(),)))) == [
            (ActionKind.PARK_NODE, "n2")
        ]


class TestReturning:
    PARKED = Action(kind=ActionKind.PARK_NODE, name="n1")

    def test_what_it_parked_when_somebody_waits(self) -> None:
        observation = observe(
            node("n1", cordoned=True),
            waiting=3,
            proposals=(past(self.PARKED, ProposalPhase.APPLIED, ago=HOUR),),
        )
        (intention,) = decide(observation)
        assert kinds([intention]) == [(ActionKind.RETURN_NODE, "n1")]
        assert "3 bids wait" in intention.reason

    def test_not_what_a_person_cordoned(self) -> None:
        assert decide(observe(node("n1", cordoned=True), waiting=3)) == []
        cordoned = Action(kind=ActionKind.CORDON_NODE, name="n1")
        proposals = (
            past(self.PARKED, ProposalPhase.APPLIED, ago=2 * HOUR),
            past(cordoned, ProposalPhase.APPLIED, ago=HOUR),
        )
        observation = observe(node("n1", cordoned=True), waiting=3, proposals=proposals)
        assert decide(observation) == []

    def test_not_while_nobody_waits(self) -> None:
        proposals = (past(self.PARKED, ProposalPhase.APPLIED),)
        assert decide(observe(node("n1", cordoned=True), proposals=proposals)) == []


def test_an_idle_lease_is_given_back_with_what_it_cost() -> None:
    idle = lease(idle_since=rfc3339(NOW - 2 * HOUR), unused_since=rfc3339(NOW - HOUR))
    busy = lease("busy", idle_since="")
    short = lease("short", idle_since=rfc3339(NOW - HOUR + 1))
    (intention,) = decide(observe(node("n1"), leases=(idle, busy, short)))
    assert kinds([intention]) == [(ActionKind.RELEASE_LEASE, "l")]
    assert intention.action.uid == "u-l"
    assert "its 2 devices have done nothing for 2.0 h" in intention.reason
    assert "cost since then: 6.00 credits at 3.00 credits per hour" in intention.evidence
    assert f"GPU counters: no work since {rfc3339(NOW - 2 * HOUR)}" in intention.evidence
    assert f"owner: agent a; no pod is on it since {rfc3339(NOW - HOUR)}" in intention.evidence


def test_a_node_with_a_degraded_link_is_cordoned() -> None:
    bad = lease(degraded="gpu-3: 8 lanes, had 16")
    (intention,) = decide(observe(node("n1"), leases=(bad,)))
    assert kinds([intention]) == [(ActionKind.CORDON_NODE, "n1")]
    assert intention.evidence == ("lease agent-a/l: gpu-3: 8 lanes, had 16",)
    assert decide(observe(node("n1", cordoned=True), leases=(bad,))) == []


@pytest.mark.parametrize(
    ("phase", "ago", "again"),
    [
        (None, 60.0, False),
        (ProposalPhase.WAITING, 5 * HOUR, False),
        (ProposalPhase.ALLOWED, 60.0, False),
        (ProposalPhase.APPLYING, 60.0, False),
        (ProposalPhase.DENIED, 60.0, False),
        (ProposalPhase.REJECTED, HOUR - 1, False),
        (ProposalPhase.REJECTED, HOUR, True),
        (ProposalPhase.EXPIRED, HOUR, True),
        (ProposalPhase.SHADOW, HOUR, True),
        (ProposalPhase.FAILED, HOUR, True),
        (ProposalPhase.APPLIED, 60.0, True),  # and it is as before: somebody returned it
    ],
)
def test_what_is_under_way_or_was_refused_rests(
    phase: ProposalPhase | None, ago: float, again: bool
) -> None:
    park = Action(kind=ActionKind.PARK_NODE, name="n1")
    observation = observe(node("n1"), node("n2"), proposals=(past(park, phase, ago),))
    assert (park in [x.action for x in decide(observation)]) is again


NODES = st.builds(
    lambda name, cordoned, ready: node(name, cordoned=cordoned, ready=ready),
    st.sampled_from(["n1", "n2", "n3"]),
    st.booleans(),
    st.booleans(),
)
LEASES = st.builds(
    lambda name, where, ago, degraded: lease(
        name, node=where, idle_since=rfc3339(NOW - ago) if ago else "", degraded=degraded
    ),
    st.sampled_from("abc"),
    st.sampled_from(["n1", "n2", "n3"]),
    st.sampled_from([0, 60, 7200]),
    st.sampled_from(["", "8 lanes"]),
)


@given(
    nodes=st.lists(NODES, max_size=3, unique_by=lambda n: n.name),
    leases=st.lists(LEASES, max_size=3, unique_by=lambda x: x.name),
    waiting=st.one_of(st.none(), st.integers(0, 2)),
    pods=st.lists(st.sampled_from(["n1", "n2", "n3"]), max_size=2),
)
def test_whatever_it_sees_it_intends_only_what_is_safe(
    nodes: list[FleetNode], leases: list[FleetLease], waiting: int | None, pods: list[str]
) -> None:
    observation = observe(*nodes, leases=tuple(leases), waiting=waiting)
    on_nodes = tuple(
        FleetPod(namespace="x", name=f"p{i}", uid=f"u{i}", node=n) for i, n in enumerate(pods)
    )
    fleet = msgspec.structs.replace(observation.fleet, pods=on_nodes)
    observation = msgspec.structs.replace(observation, fleet=fleet)
    intentions = decide(observation)
    parked = [x.action.name for x in intentions if x.action.kind is ActionKind.PARK_NODE]
    assert len(set(map(str, (x.action for x in intentions)))) == len(intentions)
    for intention in intentions:
        prepare(intention.action, fleet)
        assert intention.reason
        assert intention.evidence
    if parked:
        assert waiting == 0
        serving = [n for n in nodes if n.ready and not n.cordoned and n.name not in parked]
        assert serving, "the last node of a pool was to be parked"
    assert not {lease.node for lease in leases} & set(parked)
    assert not set(pods) & set(parked)


def test_a_node_is_idle_since_it_was_first_seen_so() -> None:
    fleet = FleetState(nodes=(node("n1"), node("n2")), leases=(lease(),))
    first = idle_nodes(fleet, {}, 10.0)
    assert first == {"n2": 10.0}
    assert idle_nodes(fleet, first, 20.0) == {"n2": 10.0}
    freed = FleetState(nodes=fleet.nodes)
    assert idle_nodes(freed, first, 30.0) == {"n1": 30.0, "n2": 10.0}


def test_the_digest_of_an_observation_is_that_of_all_of_it() -> None:
    observation = observe(node("n1"))
    later = msgspec.structs.replace(observation, at=NOW + 1)
    assert observation.digest == observe(node("n1")).digest
    assert observation.digest != later.digest
