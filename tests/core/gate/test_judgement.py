"""The verdict: what allows, what wins over it, and that whatever fails denies."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidplane.api import labels
from bidplane.api.gate.action import Action, ActionKind, Effect
from bidplane.api.gate.policy import (
    ActorRole,
    Freeze,
    PolicyLimit,
    PolicyRule,
    PolicySpec,
    Protection,
    Ruling,
)
from bidplane.api.money import MICRO
from bidplane.core.gate.defaultpolicy import DEFAULT_POLICY
from bidplane.core.gate.effects import ActionTarget, Prepared
from bidplane.core.gate.fleet import FleetState
from bidplane.core.gate.judgement import (
    ActivePolicy,
    GateActor,
    GivenApproval,
    Judgement,
    Reason,
    judge,
)
from bidplane.core.gate.rules import FIELDS, policy_problems

NOW = 1_800_000_000.0  # a Friday, 08:00 UTC
FLEET = FleetState()
OWNER = GateActor(name="ann", role=ActorRole.OWNER)
PILOT = GateActor(name="pilot", role=ActorRole.PILOT)


def change(
    kind: ActionKind = ActionKind.CORDON_NODE,
    effect: Effect = Effect(devices=2),  # noqa: B008
    **target: object,
) -> Prepared:
    return Prepared(
        action=Action(kind=kind, name="n1"),
        target=ActionTarget(kind="Node", name="n1", **target),  # type: ignore[arg-type]
        effect=effect,
    )


def rule(when: str = "true", ruling: Ruling = Ruling.ALLOW, **fields: object) -> PolicyRule:
    return PolicyRule(name="r", when=when, ruling=ruling, **fields)  # type: ignore[arg-type]


def verdict(
    *specs: PolicySpec,
    actor: GateActor = OWNER,
    prepared: Prepared | None = None,
    used: Effect = Effect(),  # noqa: B008
    approvals: tuple[GivenApproval, ...] = (),
    now: float = NOW,
) -> Judgement:
    policies = [ActivePolicy(name=f"p{i}", version="1", spec=spec) for i, spec in enumerate(specs)]
    return judge(
        policies,
        actor,
        prepared or change(),
        FLEET,
        usage=lambda window, roles: used,
        approvals=approvals,
        now=now,
    )


def test_without_a_rule_it_is_denied() -> None:
    for specs in ((), (PolicySpec(),), (PolicySpec(rules=[rule("false")]),)):
        judgement = verdict(*specs)
        assert (judgement.ruling, judgement.reason) == (Ruling.DENY, Reason.NO_RULE)
        assert "no rule of any Policy allows owner ann: CordonNode n1" in judgement.message


def test_a_rule_that_denies_wins_over_those_that_allow_or_ask() -> None:
    denies = rule(ruling=Ruling.DENY)
    for other in (rule(), rule(ruling=Ruling.APPROVE)):
        judgement = verdict(PolicySpec(rules=[other]), PolicySpec(rules=[denies]))
        assert (judgement.ruling, judgement.reason) == (Ruling.DENY, Reason.DENIED_BY_RULE)
        assert (judgement.message, judgement.policy) == ("the rule 'r' denies it", "p1@1/r")
    worded = rule(ruling=Ruling.DENY, message="ask the night shift")
    assert verdict(PolicySpec(rules=[rule(), worded])).message == "ask the night shift"
    assert verdict(PolicySpec(rules=[rule(), rule("false", Ruling.DENY)])).ruling is Ruling.ALLOW


@pytest.mark.parametrize(
    "when",
    [
        "actor.rank > 3",  # no such field
        "1 / 0 == 1",
        "target.labels['team'] == 'a'",  # a label that it does not have
        "action.value",  # of type dyn until it is evaluated: text
        "effect.devices",
    ],
)
@pytest.mark.parametrize("ruling", list(Ruling))
def test_a_condition_that_fails_denies_whatever_else_allows(when: str, ruling: Ruling) -> None:
    spec = PolicySpec(rules=[rule(), rule(when, ruling)])
    assert verdict(spec).reason is Reason.RULE_FAILED
    guarded = PolicySpec(rules=[rule()], protections=[Protection(name="p", when=when)])
    assert verdict(guarded).reason is Reason.RULE_FAILED
    frozen = PolicySpec(rules=[rule()], freezes=[Freeze(name="f", when=when)])
    assert verdict(frozen).reason is Reason.RULE_FAILED


def test_one_policy_that_cannot_be_read_denies_all() -> None:
    good = ActivePolicy(name="a", version="1", spec=PolicySpec(rules=[rule()]))
    bad = ActivePolicy(name="b", version="1", spec=PolicySpec(), problem="spec.rules: no list")
    judgement = judge(
        [good, bad], OWNER, change(), FLEET, usage=lambda window, roles: Effect(), now=NOW
    )
    assert judgement.reason is Reason.RULE_FAILED
    assert "Policy b: spec.rules: no list" in judgement.message


def test_a_freeze_knows_the_day_and_the_hour() -> None:
    weekend = Freeze(name="weekend", when="time.weekday in ['Saturday', 'Sunday']")
    night = Freeze(name="night", when="time.hour < 6", message="nobody is awake")
    spec = PolicySpec(rules=[rule()], freezes=[weekend, night])
    assert verdict(spec).ruling is Ruling.ALLOW
    assert verdict(spec, now=NOW + 86_400).reason is Reason.FROZEN
    early = verdict(spec, now=NOW - 3 * 3600)
    assert (early.reason, early.message) == (Reason.FROZEN, "nobody is awake")


APPROVE = PolicySpec(rules=[rule(ruling=Ruling.APPROVE, approvals=2, expire_seconds=600)])


def approval(name: str, role: ActorRole = ActorRole.APPROVER, ago: float = 0.0) -> GivenApproval:
    return GivenApproval(name=name, role=role, at=NOW - ago)


@pytest.mark.parametrize(
    ("approvals", "allowed"),
    [
        ((), False),
        ((approval("bea"),), False),
        ((approval("bea"), approval("bea")), False),  # the same person twice
        ((approval("bea"), approval("ann")), False),  # who proposes does not approve
        ((approval("bea"), approval("cem", ActorRole.FINANCE)), False),  # not the role
        ((approval("bea"), approval("cem", ago=600)), False),  # expired at that moment
        ((approval("bea"), approval("cem", ago=599)), True),
        ((approval("bea"), approval("cem", ActorRole.OWNER)), True),
    ],
)
def test_two_people_approve(approvals: tuple[GivenApproval, ...], allowed: bool) -> None:
    judgement = verdict(APPROVE, approvals=approvals)
    assert (judgement.ruling is Ruling.ALLOW) is allowed
    if not allowed:
        assert (judgement.reason, judgement.needs) == (Reason.NEEDS_APPROVAL, 2)
        assert "2 people (owner or approver)" in judgement.message


def test_of_several_policies_the_one_that_needs_most_people_is_named() -> None:
    one = rule(ruling=Ruling.APPROVE, approvers=[ActorRole.OWNER])
    two = rule(ruling=Ruling.APPROVE, approvers=[ActorRole.APPROVER], approvals=2)
    judgement = verdict(PolicySpec(rules=[one]), PolicySpec(rules=[two]))
    assert (judgement.needs, judgement.policy) == (2, "p1@1/r")
    assert judgement.message == "needs the approval of 2 people (approver)"
    assert judgement.approvers == (ActorRole.OWNER, ActorRole.APPROVER)


def test_what_is_protected_stays_so_when_it_is_approved() -> None:
    spec = msgspec.structs.replace(
        APPROVE, protections=[Protection(name="p", when="target.kind == 'Node'")]
    )
    judgement = verdict(spec, approvals=(approval("bea"), approval("cem")))
    assert judgement.reason is Reason.PROTECTED


COUNTS = st.integers(0, 20)
EFFECTS = st.builds(
    Effect, devices=COUNTS, pods=COUNTS, agents=COUNTS, spend=st.integers(0, 20 * MICRO)
)


@given(
    effects=st.lists(EFFECTS, min_size=1, max_size=12),
    most=st.tuples(COUNTS, COUNTS, COUNTS, COUNTS),
)
def test_all_that_is_allowed_stays_within_the_limit(
    effects: list[Effect], most: tuple[int, int, int, int]
) -> None:
    limit = PolicyLimit(name="l", devices=most[0], pods=most[1], agents=most[2], spend=str(most[3]))
    spec = PolicySpec(rules=[rule()], limits=[limit])
    total = Effect()
    for effect in effects:
        judgement = verdict(spec, prepared=change(effect=effect), used=total)
        after = total + effect
        fits = (
            (after.devices <= most[0] or not effect.devices)
            and (after.pods <= most[1] or not effect.pods)
            and (after.agents <= most[2] or not effect.agents)
            and (after.spend <= most[3] * MICRO or not effect.spend)
        )
        assert (judgement.ruling is Ruling.ALLOW) is fits
        if fits:
            total = after
        else:
            assert judgement.reason is Reason.OVER_LIMIT
    assert total.devices <= most[0]
    assert total.pods <= most[1]
    assert total.agents <= most[2]
    assert total.spend <= most[3] * MICRO


RULES = st.builds(
    lambda when, ruling: rule(when, ruling),
    st.sampled_from(["true", "false", "effect.devices > 1", "target.labels['x'] == 'y'"]),
    st.sampled_from(list(Ruling)),
)


@given(
    first=st.lists(RULES, max_size=4),
    second=st.lists(RULES, max_size=4),
    role=st.sampled_from(list(ActorRole)),
)
def test_who_asks_and_the_order_of_rules_make_no_difference(
    first: list[PolicyRule], second: list[PolicyRule], role: ActorRole
) -> None:
    """The gate's equality, for rules that do not name the actor."""
    one_policy = verdict(PolicySpec(rules=[*first, *second]))
    other_order = verdict(PolicySpec(rules=[*second, *first]))
    two_policies = verdict(
        PolicySpec(rules=second),
        PolicySpec(rules=first),
        actor=GateActor(name="x", role=role),
    )
    assert one_policy.ruling is other_order.ruling is two_policies.ruling
    assert one_policy.reason is other_order.reason is two_policies.reason


@given(rules=st.lists(RULES, max_size=5))
def test_nothing_is_allowed_while_a_rule_denies_or_fails(rules: list[PolicyRule]) -> None:
    judgement = verdict(PolicySpec(rules=rules))
    holding = [r for r in rules if r.when in ("true", "effect.devices > 1")]
    failing = any("labels" in r.when for r in rules)
    denying = any(r.ruling is Ruling.DENY for r in holding)
    asking = any(r.ruling is Ruling.APPROVE for r in holding)
    if judgement.ruling is Ruling.ALLOW:
        assert not failing
        assert not denying
        assert not asking
        assert holding
    else:
        assert failing or denying or asking or not holding


class TestTheDefault:
    def test_is_a_policy(self) -> None:
        assert policy_problems(DEFAULT_POLICY) == []

    def test_allows_owners_and_makes_the_pilot_ask(self) -> None:
        assert verdict(DEFAULT_POLICY).ruling is Ruling.ALLOW
        for role in (ActorRole.PILOT, ActorRole.OPERATOR, ActorRole.FINANCE, ActorRole.APPROVER):
            judgement = verdict(DEFAULT_POLICY, actor=GateActor(name="x", role=role))
            assert judgement.reason is Reason.NEEDS_APPROVAL
        nobody = GateActor(name="x", role=ActorRole.NONE)
        assert verdict(DEFAULT_POLICY, actor=nobody).reason is Reason.NO_RULE

    @pytest.mark.parametrize("actor", [OWNER, PILOT])
    def test_protects_what_is_pinned_and_the_pilots_own_parts(self, actor: GateActor) -> None:
        pinned = change(annotations={labels.PINNED: "until Friday"})
        own = change(labels={labels.OPERATOR_PART: "log"})
        for prepared in (pinned, own):
            assert verdict(DEFAULT_POLICY, actor=actor, prepared=prepared).reason is (
                Reason.PROTECTED
            )

    def test_keeps_the_pilot_from_production(self) -> None:
        for key in ("env", "environment"):
            prepared = change(labels={key: "production"})
            assert verdict(DEFAULT_POLICY, prepared=prepared).ruling is Ruling.ALLOW
            judgement = verdict(DEFAULT_POLICY, actor=PILOT, prepared=prepared)
            assert judgement.reason is Reason.PROTECTED

    def test_limits_the_pilot_also_when_somebody_approves(self) -> None:
        wide = change(effect=Effect(devices=33))
        judgement = verdict(
            DEFAULT_POLICY, actor=PILOT, prepared=wide, approvals=(approval("bea"),)
        )
        assert judgement.reason is Reason.OVER_LIMIT
        assert "'pilot-hour': at most 32 devices in 3600 s" in judgement.message


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (PolicySpec(rules=[rule("actor.role ==")]), "spec.rules[0].when: "),
        (PolicySpec(rules=[rule("'yes'")]), "spec.rules[0].when: "),
        (PolicySpec(rules=[rule("1 + 1")]), "must evaluate to a bool, not int"),
        (PolicySpec(rules=[rule("who == 'ann'")]), "undeclared reference to 'who'"),
        # Everything about a change is there: what is misspelt would fail on every change.
        (PolicySpec(rules=[rule("action.kindd == 'CordonNode'")]), "action has no field 'kindd'"),
        (PolicySpec(rules=[rule("has(actor.team)")]), "actor has no field 'team'"),
        (
            PolicySpec(freezes=[Freeze(name="f", when="[1].exists(x, time.day == x)")]),
            "spec.freezes[0].when: time has no field 'day': it has unix, date, weekday, hour",
        ),
        (PolicySpec(rules=[rule("effect['device'] > 1")]), "effect has no field 'device'"),
        (PolicySpec(rules=[rule("action.name")]), "must evaluate to true or false"),
        (PolicySpec(rules=[rule("target.labels")]), "must evaluate to true or false"),
        (PolicySpec(rules=[rule("effect.devices > 'three'")]), "spec.rules[0].when: "),
        (PolicySpec(rules=[rule(), rule()]), "spec.rules: the name 'r' is used twice"),
        (PolicySpec(rules=[rule(approvers=[])]), "spec.rules[0].approvers: name at least one"),
        (PolicySpec(limits=[PolicyLimit(name="", spend="1")]), "spec.limits[0].name: "),
        (PolicySpec(limits=[PolicyLimit(name="l", spend="ten")]), "spec.limits[0].spend: 'ten'"),
        (PolicySpec(freezes=[Freeze(name="f", when="2")]), "spec.freezes[0].when: "),
        (PolicySpec(protections=[Protection(name="p", when="")]), "spec.protections[0].when: "),
    ],
)
def test_a_bad_policy_is_refused_with_the_field(spec: PolicySpec, problem: str) -> None:
    assert any(problem in line for line in policy_problems(spec)), policy_problems(spec)


@pytest.mark.parametrize(
    "when",
    [
        "target.labels['app'] == 'logging'",  # it may be there, and fails where it is not
        "target.labels.app == 'logging'",
        "'app' in target.labels && target.labels['app'] == 'logging'",
        "has(target.annotations.owner) && target.annotations.owner == actor.name",
        "[{'team': 'x'}].exists(action, action.team == 'x')",  # a variable of its own
        "['name'].all(key, action[key] != '')",
        "time.hour in [1, 2] || fleet.leased * 2 > fleet.devices",
    ],
)
def test_a_condition_that_may_hold_is_taken(when: str) -> None:
    assert policy_problems(PolicySpec(rules=[rule(when)])) == []


SAMPLES = {str: "''", int: "1", float: "1.0", dict: "{}"}


def test_the_fields_that_are_checked_are_those_that_conditions_have() -> None:
    for name, fields in FIELDS.items():
        for field, example in fields.items():
            same = f"type({name}.{field}) == type({SAMPLES[type(example)]})"
            judgement = verdict(PolicySpec(rules=[rule(same)]))
            assert judgement.ruling is Ruling.ALLOW, (same, judgement)
        assert verdict(PolicySpec(rules=[rule(f"size({name}) == {len(fields)}")])).reason is (
            Reason.ALLOWED
        )
