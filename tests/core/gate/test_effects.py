"""The effect of each action, its undo, and what is refused before any Policy is read."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidplane.api.endpoint import EndpointPhase
from bidplane.api.gate.action import Action, ActionKind, Effect
from bidplane.api.money import MICRO
from bidplane.core.gate.actions import action_digest, action_problem
from bidplane.core.gate.effects import (
    ActionImpossible,
    Impossible,
    is_carried_out,
    prepare,
)
from bidplane.core.gate.fleet import (
    FleetAgent,
    FleetEndpoint,
    FleetLease,
    FleetNode,
    FleetPod,
    FleetPool,
    FleetState,
)
from bidplane.core.gate.measuring import difference


def lease(name: str = "l1", **fields: object) -> FleetLease:
    return FleetLease(
        **{  # type: ignore[arg-type]
            "namespace": "agent-a",
            "name": name,
            "uid": f"u-{name}",
            "agent": "a",
            "pool": "h100",
            "node": "n1",
            "devices": 2,
            "rent": 3 * MICRO,
            **fields,
        }
    )


def service(name: str, **fields: object) -> FleetEndpoint:
    return FleetEndpoint(
        **{  # type: ignore[arg-type]
            "namespace": "agent-a",
            "name": name,
            "uid": f"u-{name}",
            "agent": "a",
            "phase": EndpointPhase.READY,
            "awake": True,
            "replicas": 2,
            "gpus": 2,
            "holds": 0,
            "in_flight": 0,
            "pods": 1,
            "leases": ("l1",),
            **fields,
        }
    )


def of_service(kind: ActionKind, name: str, value: str = "") -> Action:
    return Action(kind=kind, namespace="agent-a", name=name, uid=f"u-{name}", value=value)


POD = FleetPod(namespace="agent-a", name="pod", uid="u-pod", agent="a", node="n1", lease="l1")
FLEET = FleetState(
    pods=(POD,),
    leases=(lease(), lease("l2", agent="b", namespace="agent-b")),
    nodes=(
        FleetNode(name="n1", pools=("h100",), devices=8),
        FleetNode(name="n2", pools=("h100",), devices=8, cordoned=True),
        FleetNode(name="n3", pools=("h100",), devices=8),
    ),
    pools=(FleetPool(name="h100", floor_price="0.20", idle_seconds=300, waiting=0),),
    agents=(
        FleetAgent(name="a", refill="10", priority=3),
        FleetAgent(name="m", refill="10", priority=1, movable=True, fields={"owner": '"team"'}),
    ),
    endpoints=(
        service("awake"),
        service("asleep", phase=EndpointPhase.ASLEEP, awake=False, pods=0, leases=()),
        service("broken", phase=EndpointPhase.WAKING, failure="CrashLoopBackOff"),
        service("refused", phase=EndpointPhase.REFUSED),
    ),
)
# A node of which little is leased, by an agent that may be moved.
SPARSE = msgspec.structs.replace(
    FLEET,
    nodes=(*FLEET.nodes, FleetNode(name="n4", pools=("h100",), devices=8)),
    leases=(*FLEET.leases, lease("l4", agent="m", namespace="agent-m", node="n4")),
)

EVICT = Action(kind=ActionKind.EVICT_POD, namespace="agent-a", name="pod", uid="u-pod")
RELEASE = Action(kind=ActionKind.RELEASE_LEASE, namespace="agent-a", name="l1", uid="u-l1")


def action(kind: ActionKind, name: str, value: str = "") -> Action:
    return Action(kind=kind, name=name, value=value)


@pytest.mark.parametrize(
    ("asked", "effect", "undo"),
    [
        (EVICT, Effect(devices=2, pods=1, agents=1, spend=3 * MICRO), None),
        (RELEASE, Effect(devices=2, pods=1, agents=1, spend=3 * MICRO), None),
        (
            action(ActionKind.CORDON_NODE, "n1"),
            Effect(devices=8, agents=2),
            action(ActionKind.RETURN_NODE, "n1"),
        ),
        (
            action(ActionKind.PARK_NODE, "n3"),
            Effect(devices=8),
            action(ActionKind.RETURN_NODE, "n3"),
        ),
        (
            action(ActionKind.RETURN_NODE, "n2"),
            Effect(devices=8),
            action(ActionKind.CORDON_NODE, "n2"),
        ),
        (
            action(ActionKind.SET_FLOOR_PRICE, "h100", "0.50"),
            Effect(devices=4, agents=2, spend=4 * 300_000),
            action(ActionKind.SET_FLOOR_PRICE, "h100", "0.20"),
        ),
        (
            action(ActionKind.SET_FLOOR_PRICE, "h100", "0.10"),  # less is a change, too
            Effect(devices=4, agents=2, spend=4 * 100_000),
            action(ActionKind.SET_FLOOR_PRICE, "h100", "0.20"),
        ),
        (
            action(ActionKind.SET_IDLE_WINDOW, "h100", "600"),
            Effect(devices=4, agents=2),
            action(ActionKind.SET_IDLE_WINDOW, "h100", "300"),
        ),
        (
            action(ActionKind.SET_REFILL, "a", "12.00"),
            Effect(agents=1, spend=2 * 3 * MICRO),
            action(ActionKind.SET_REFILL, "a", "10.00"),
        ),
        (
            action(ActionKind.SET_PRIORITY, "a", "5"),
            Effect(agents=1, spend=2 * 10 * MICRO),
            action(ActionKind.SET_PRIORITY, "a", "3"),
        ),
        (
            of_service(ActionKind.SCALE_ENDPOINT, "awake", "5"),
            Effect(devices=6, pods=3, agents=1, spend=6 * 1_500_000),  # at the dearest rent now
            of_service(ActionKind.SCALE_ENDPOINT, "awake", "2"),
        ),
        (
            of_service(ActionKind.PREWARM_ENDPOINT, "asleep", "sure"),
            Effect(devices=4, pods=2, agents=1, spend=4 * 1_500_000),
            of_service(ActionKind.SLEEP_ENDPOINT, "asleep"),
        ),
        (
            of_service(ActionKind.SLEEP_ENDPOINT, "awake"),
            Effect(devices=2, pods=1, agents=1, spend=3 * MICRO),
            of_service(ActionKind.PREWARM_ENDPOINT, "awake", "sure"),
        ),
        (of_service(ActionKind.RETRY_ROLLOUT, "broken"), Effect(pods=1, agents=1), None),
        (
            action(ActionKind.CONSOLIDATE_NODE, "n4"),
            Effect(devices=2, agents=1, spend=3 * MICRO),
            action(ActionKind.RETURN_NODE, "n4"),
        ),
        (action(ActionKind.SNAPSHOT_PLANE, "a"), Effect(agents=1), None),
        (action(ActionKind.PAGE_PERSON, "on-call", "the fleet is on fire"), Effect(), None),
        (
            action(ActionKind.REPAIR_DRIFT, "h100", "Pool noticeSeconds 60"),
            Effect(devices=4, agents=2),
            action(ActionKind.REPAIR_DRIFT, "h100", "Pool noticeSeconds null"),
        ),
        (
            action(ActionKind.REPAIR_DRIFT, "m", 'Agent owner "other"'),
            Effect(agents=1),
            action(ActionKind.REPAIR_DRIFT, "m", 'Agent owner "team"'),
        ),
    ],
    ids=lambda value: str(value.kind) if isinstance(value, Action) else "",
)
def test_the_effect_and_the_undo(asked: Action, effect: Effect, undo: Action | None) -> None:
    fleet = SPARSE if asked.kind is ActionKind.CONSOLIDATE_NODE else FLEET
    prepared = prepare(asked, fleet)
    assert prepared.effect == effect
    assert prepared.undo == undo
    assert undo is None or not action_problem(undo), "the undo is no action"
    assert not is_carried_out(asked, fleet)


def test_every_kind_has_an_effect_above() -> None:
    marks = test_the_effect_and_the_undo.pytestmark  # type: ignore[attr-defined]
    assert {case[0].kind for case in marks[0].args[1]} == set(ActionKind) - {
        ActionKind.OFF_TOPIC  # which has none
    }


@pytest.mark.parametrize(
    ("asked", "reason", "message"),
    [
        (action(ActionKind.CORDON_NODE, "n9"), Impossible.NO_SUCH_TARGET, "no Node n9"),
        (action(ActionKind.CORDON_NODE, "n2"), Impossible.NOTHING_TO_DO, "cordoned already"),
        (action(ActionKind.RETURN_NODE, "n1"), Impossible.NOTHING_TO_DO, "takes work already"),
        (action(ActionKind.PARK_NODE, "n1"), Impossible.IN_USE, "2 leases and 1 pods"),
        (action(ActionKind.CORDON_NODE, ""), Impossible.BAD_ACTION, "name the Node"),
        (action(ActionKind.CORDON_NODE, "n1", "x"), Impossible.BAD_ACTION, "takes no value"),
        (action(ActionKind.EVICT_POD, "pod"), Impossible.BAD_ACTION, "namespace and uid"),
        (
            Action(kind=ActionKind.EVICT_POD, namespace="agent-a", name="pod", uid="u-old"),
            Impossible.NO_SUCH_TARGET,
            "no Pod agent-a/pod with uid u-old",
        ),
        (
            Action(kind=ActionKind.CORDON_NODE, name="n1", namespace="x"),
            Impossible.BAD_ACTION,
            "named by its name alone",
        ),
        (
            action(ActionKind.SET_FLOOR_PRICE, "h100", "0.2"),
            Impossible.BAD_ACTION,
            "write action.value as '0.20', not '0.2'",
        ),
        (action(ActionKind.SET_FLOOR_PRICE, "h100", "-1"), Impossible.BAD_ACTION, "'-1'"),
        (action(ActionKind.SET_FLOOR_PRICE, "h100", "0.20"), Impossible.NOTHING_TO_DO, "already"),
        (action(ActionKind.SET_IDLE_WINDOW, "h100", "1.5"), Impossible.BAD_ACTION, "whole number"),
        (action(ActionKind.SET_PRIORITY, "a", "0"), Impossible.BAD_ACTION, "from 1 to 1000"),
        (action(ActionKind.SET_REFILL, "a", "10.00"), Impossible.NOTHING_TO_DO, "already"),
        (
            of_service(ActionKind.SCALE_ENDPOINT, "awake", "0"),
            Impossible.BAD_ACTION,
            "from 1 to 100",
        ),
        (
            of_service(ActionKind.SCALE_ENDPOINT, "awake", "2"),
            Impossible.NOTHING_TO_DO,
            "has 2 already",
        ),
        (
            of_service(ActionKind.PREWARM_ENDPOINT, "asleep", "maybe"),
            Impossible.BAD_ACTION,
            "neither 'sure' nor 'unsure'",
        ),
        (
            of_service(ActionKind.PREWARM_ENDPOINT, "awake", "sure"),
            Impossible.NOTHING_TO_DO,
            "awake already",
        ),
        (of_service(ActionKind.SLEEP_ENDPOINT, "asleep"), Impossible.NOTHING_TO_DO, "sleeps"),
        (of_service(ActionKind.RETRY_ROLLOUT, "refused"), Impossible.NOT_SERVED, "is refused"),
        (of_service(ActionKind.SLEEP_ENDPOINT, "refused"), Impossible.NOT_SERVED, "is refused"),
        (of_service(ActionKind.RETRY_ROLLOUT, "awake"), Impossible.NOTHING_TO_DO, "not failed"),
        (action(ActionKind.CONSOLIDATE_NODE, "n1"), Impossible.NOT_MOVABLE, "agent a is not"),
        (action(ActionKind.CONSOLIDATE_NODE, "n3"), Impossible.NOTHING_TO_DO, "park it"),
        (action(ActionKind.PAGE_PERSON, "on-call", "a\nb"), Impossible.BAD_ACTION, "printable"),
        (
            action(ActionKind.REPAIR_DRIFT, "h100", "Pool floorPrice 1"),
            Impossible.BAD_ACTION,
            "action of its own",
        ),
        (
            action(ActionKind.REPAIR_DRIFT, "a", "Secret data 1"),
            Impossible.BAD_ACTION,
            "Pool or Agent",
        ),
        (action(ActionKind.OFF_TOPIC, "model", "a haiku"), Impossible.OFF_TOPIC, "'a haiku'"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    asked: Action, reason: Impossible, message: str
) -> None:
    with pytest.raises(ActionImpossible, match=message) as refused:
        prepare(asked, FLEET)
    assert refused.value.reason is reason


def test_an_uid_that_is_gone_is_carried_out() -> None:
    emptied = FleetState(nodes=FLEET.nodes)
    assert is_carried_out(EVICT, emptied)
    assert is_carried_out(RELEASE, emptied)
    assert is_carried_out(action(ActionKind.CORDON_NODE, "n2"), FLEET)
    assert not is_carried_out(action(ActionKind.CORDON_NODE, "n9"), FLEET), "it never was there"


@given(
    pods=st.integers(0, 2),
    leases=st.integers(0, 2),
    waiting=st.one_of(st.none(), st.integers(0, 2)),
    known_pool=st.booleans(),
)
def test_nothing_is_parked_that_is_used_or_whose_queue_is_not_known_empty(
    pods: int, leases: int, waiting: int | None, known_pool: bool
) -> None:
    fleet = FleetState(
        nodes=(FleetNode(name="n1", pools=("h100",), devices=8),),
        pods=(POD,) * pods,
        leases=(lease(),) * leases,
        pools=(FleetPool(name="h100", floor_price="1", idle_seconds=1, waiting=waiting),)
        if known_pool
        else (),
    )
    idle = not pods and not leases and known_pool and waiting == 0
    try:
        prepare(action(ActionKind.PARK_NODE, "n1"), fleet)
    except ActionImpossible:
        assert not idle
    else:
        assert idle


COUNTS = st.one_of(st.none(), st.integers(0, 2))
SCALING_DOWN = (
    of_service(ActionKind.SLEEP_ENDPOINT, "web"),
    of_service(ActionKind.SCALE_ENDPOINT, "web", "1"),
    RELEASE,
    action(ActionKind.CONSOLIDATE_NODE, "n1"),
    action(ActionKind.PARK_NODE, "n1"),
)


@given(
    asked=st.sampled_from(SCALING_DOWN),
    holds=COUNTS,
    in_flight=COUNTS,
    waiting=COUNTS,
    phase=st.sampled_from(list(EndpointPhase)),
    awake=st.booleans(),
    leased=st.booleans(),
    past_us=st.booleans(),
    own_queue=st.booleans(),
)
def test_nothing_is_scaled_down_while_its_queue_is_not_empty_or_unknown(
    asked: Action,
    holds: int | None,
    in_flight: int | None,
    waiting: int | None,
    phase: EndpointPhase,
    awake: bool,
    leased: bool,
    past_us: bool,
    own_queue: bool,
) -> None:
    web = service(
        "web", holds=holds, in_flight=in_flight, phase=phase, awake=awake, past_us=past_us,
        own_queue=own_queue,
    )  # fmt: skip
    fleet = FleetState(
        nodes=tuple(FleetNode(name=name, pools=("h100",), devices=8) for name in ("n1", "n2")),
        leases=(lease(),) if leased else (),
        pools=(FleetPool(name="h100", floor_price="1", idle_seconds=1, waiting=waiting),),
        agents=(FleetAgent(name="a", refill="1", priority=1, movable=True),),
        endpoints=(web,),
    )
    try:
        prepare(asked, fleet)
    except ActionImpossible:
        return
    if asked.kind is not ActionKind.PARK_NODE:  # on which it has nothing
        assert (holds, in_flight) == (0, 0)
        if awake or phase in (EndpointPhase.WAKING, EndpointPhase.READY):
            assert not past_us, "its requests are not seen"
            # Before it lets a service sleep, the activator asks the application itself.
            assert not own_queue or asked.kind is ActionKind.SLEEP_ENDPOINT
    if asked.name == "n1":
        assert waiting == 0


@pytest.mark.parametrize("asked", SCALING_DOWN[:4], ids=lambda action: action.kind)
def test_a_service_that_nobody_waits_for_is_scaled_down(asked: Action) -> None:
    fleet = msgspec.structs.replace(
        SPARSE,
        nodes=SPARSE.nodes[:1] + SPARSE.nodes[2:],
        leases=(lease(),),
        agents=(FleetAgent(name="a", refill="1", priority=1, movable=True),),
        endpoints=(service("web"),),
    )
    assert prepare(asked, fleet).effect.pods == 1


def test_what_does_not_fit_elsewhere_is_not_consolidated() -> None:
    full = tuple(lease(f"f{i}", node=node, devices=7) for i, node in enumerate(("n1", "n3")))
    fleet = msgspec.structs.replace(SPARSE, leases=(*full, SPARSE.leases[-1]))
    assert prepare(action(ActionKind.CONSOLIDATE_NODE, "n4"), fleet).effect.devices == 2
    fuller = msgspec.structs.replace(
        fleet, leases=(*fleet.leases, lease("g", node="n3", devices=1))
    )
    with pytest.raises(ActionImpossible, match="1 are free on other nodes"):
        prepare(action(ActionKind.CONSOLIDATE_NODE, "n4"), fuller)


TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
ACTIONS = st.builds(
    Action, kind=st.sampled_from(list(ActionKind)), name=TEXTS, namespace=TEXTS, uid=TEXTS,
    value=TEXTS,
)  # fmt: skip


@given(actions=st.lists(ACTIONS, min_size=2, max_size=2, unique=True))
def test_another_action_has_another_digest(actions: list[Action]) -> None:
    first, second = actions
    assert action_digest(first) != action_digest(second)
    again = Action(**{name: getattr(first, name) for name in first.__struct_fields__})
    assert action_digest(first) == action_digest(again)


@given(asked=ACTIONS)
def test_no_action_is_too_odd_to_be_refused(asked: Action) -> None:
    if asked.kind is ActionKind.PAGE_PERSON and not action_problem(asked):
        return  # which needs no fleet
    with pytest.raises(ActionImpossible, match=r"\w"):
        prepare(asked, FleetState())


def test_digests_of_shifted_fields_differ() -> None:
    """Fields are not simply joined: a name cannot pass for another field."""
    variants = [
        Action(kind=ActionKind.EVICT_POD, namespace=a, name=b, uid=c)
        for a, b, c in itertools.permutations(("x", "xy", ""))
    ]
    assert len({action_digest(variant) for variant in variants}) == len(variants)


def test_a_pod_that_leases_nothing_gives_no_device_back() -> None:
    bare = msgspec.structs.replace(POD, lease="", agent="")
    fleet = msgspec.structs.replace(FLEET, pods=(bare,))
    assert prepare(EVICT, fleet).effect == Effect(pods=1)


def test_a_measured_effect_is_how_much_less_there_is() -> None:
    before = Effect(devices=5, pods=4, agents=3, spend=9)
    after = Effect(devices=2, pods=3, agents=1, spend=1)
    assert difference(before, after) == Effect(devices=3, pods=1, agents=2, spend=8)
    assert difference(after, before) == difference(before, after)
