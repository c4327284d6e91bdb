"""
The verdict on a change: allowed, denied, or waiting for approval, with its reason.

Of all Policies together, a condition that fails denies; then protections, freezes, denials and
limits; then the absence of a rule. Only after these does an approval count, or a permission.
Who asks makes no difference, unless a condition names the actor.
"""

from __future__ import annotations

import datetime
import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from bidplane.api.gate.action import Effect
from bidplane.api.gate.policy import ActorRole, PolicyLimit, PolicyRule, PolicySpec, Ruling
from bidplane.api.money import MICRO, format_credits, parse_amount
from bidplane.core import cel
from bidplane.core.gate.effects import Prepared
from bidplane.core.gate.fleet import FleetState
from bidplane.core.gate.rules import program


class GateActor(msgspec.Struct, frozen=True, kw_only=True):
    """The one that asks for a change, by an authenticated credential."""

    name: str
    role: ActorRole


class GivenApproval(msgspec.Struct, frozen=True, kw_only=True):
    """An approval of exactly this action."""

    name: str
    role: ActorRole
    at: float  # seconds


class ActivePolicy(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    version: str  # its resourceVersion
    spec: PolicySpec
    problem: str = ""  # of one that cannot be read: it denies everything


class Reason(enum.StrEnum):
    ALLOWED = "Allowed"
    APPROVED = "Approved"
    NEEDS_APPROVAL = "NeedsApproval"
    NO_RULE = "NoRule"
    DENIED_BY_RULE = "DeniedByRule"
    PROTECTED = "Protected"
    FROZEN = "Frozen"
    OVER_LIMIT = "OverLimit"
    RULE_FAILED = "RuleFailed"


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    ruling: Ruling
    reason: Reason
    message: str
    policy: str = ""  # NAME@VERSION/rule
    needs: int = 0  # approvals in all, if it waits
    expire_seconds: int = 0  # for how long it may wait
    approvers: tuple[ActorRole, ...] = ()  # whose approval counts


# (window in seconds, roles) → what allowed changes of these roles touched in the window.
Usage = Callable[[int, Sequence[ActorRole]], Effect]

# The first of these that any Policy gives is the verdict.
_STRICTEST_FIRST = (
    Reason.RULE_FAILED,
    Reason.PROTECTED,
    Reason.FROZEN,
    Reason.DENIED_BY_RULE,
    Reason.OVER_LIMIT,
    Reason.NEEDS_APPROVAL,
    Reason.APPROVED,
    Reason.ALLOWED,
)


class _Case(msgspec.Struct, frozen=True):
    """One change before the gate."""

    actor: GateActor
    change: Prepared
    approvals: Sequence[GivenApproval]
    variables: Mapping[str, Any]
    now: float


def judge(
    policies: Sequence[ActivePolicy],
    actor: GateActor,
    change: Prepared,
    fleet: FleetState,
    *,
    usage: Usage,
    approvals: Sequence[GivenApproval] = (),
    now: float,
) -> Judgement:
    """Return the verdict on a change that `actor` asks for."""
    case = _Case(actor, change, approvals, _variables(actor, change, fleet, now), now)
    opinions = [
        opinion
        for policy in sorted(policies, key=lambda policy: policy.name)
        for opinion in _opinions(policy, case, usage)
    ]
    for reason in _STRICTEST_FIRST:
        same = [opinion for opinion in opinions if opinion.reason is reason]
        if reason is Reason.NEEDS_APPROVAL and same:
            # All of them are needed; the message is of the one that needs most people.
            return msgspec.structs.replace(
                max(same, key=lambda opinion: opinion.needs),
                approvers=tuple(
                    role for role in ActorRole if any(role in opinion.approvers for opinion in same)
                ),
                expire_seconds=min(opinion.expire_seconds for opinion in same),
            )
        if same:
            return same[0]
    return Judgement(
        ruling=Ruling.DENY,
        reason=Reason.NO_RULE,
        message=f"no rule of any Policy allows {actor.role} {actor.name}: {change.action}",
    )


def _opinions(policy: ActivePolicy, case: _Case, usage: Usage) -> Iterator[Judgement]:
    """Yield what the parts of one Policy that apply to the case give."""
    where = f"{policy.name}@{policy.version}"
    if policy.problem:
        yield _denied(Reason.RULE_FAILED, f"Policy {policy.name}: {policy.problem}", where)
        return
    spec = policy.spec
    named: list[tuple[str, str, Callable[[str], Judgement]]] = []
    for protection in spec.protections:
        message = protection.message or f"{case.change.target.name} is protected"
        named.append((protection.name, protection.when, _refuser(Reason.PROTECTED, message)))
    for freeze in spec.freezes:
        message = freeze.message or "nothing is changed at this time"
        named.append((freeze.name, freeze.when, _refuser(Reason.FROZEN, message)))
    named += [(rule.name, rule.when, _ruler(rule, case)) for rule in spec.rules]
    for name, source, give in named:
        place = f"{where}/{name}"
        try:
            holds = program(source).evaluate(case.variables)
        except cel.CelError as error:
            message = f"the condition of {name!r} in Policy {policy.name} fails: {error}"
            yield _denied(Reason.RULE_FAILED, message, place)
            continue
        if holds is True:
            yield give(place)
    for limit in spec.limits:
        if limit.roles and case.actor.role not in limit.roles:
            continue
        try:
            excess = _excess(limit, usage(limit.window_seconds, limit.roles), case.change.effect)
        except ValueError as error:
            message = f"the limit {limit.name!r} in Policy {policy.name} cannot be read: {error}"
            yield _denied(Reason.RULE_FAILED, message, f"{where}/{limit.name}")
            continue
        if excess:
            yield _denied(Reason.OVER_LIMIT, excess, f"{where}/{limit.name}")


def _refuser(reason: Reason, message: str) -> Callable[[str], Judgement]:
    return lambda place: _denied(reason, message, place)


def _ruler(rule: PolicyRule, case: _Case) -> Callable[[str], Judgement]:
    """Return the opinion that a rule has once its condition holds, by its place."""

    def give(place: str) -> Judgement:
        match rule.ruling:
            case Ruling.ALLOW:
                message = rule.message or f"the rule {rule.name!r} allows it"
                return Judgement(
                    ruling=Ruling.ALLOW, reason=Reason.ALLOWED, message=message, policy=place
                )
            case Ruling.DENY:
                message = rule.message or f"the rule {rule.name!r} denies it"
                return _denied(Reason.DENIED_BY_RULE, message, place)
            case Ruling.APPROVE:
                return _approval(rule, case, place)

    return give


def _approval(rule: PolicyRule, case: _Case, place: str) -> Judgement:
    """Return permission if enough people approved, else what is missing."""
    people = {
        approval.name
        for approval in case.approvals
        if approval.role in rule.approvers
        and approval.name != case.actor.name
        and approval.at + rule.expire_seconds > case.now
    }
    if len(people) >= rule.approvals:
        return Judgement(
            ruling=Ruling.ALLOW,
            reason=Reason.APPROVED,
            message=f"approved by {', '.join(sorted(people))}",
            policy=place,
        )
    roles = " or ".join(rule.approvers)
    count = "one person" if rule.approvals == 1 else f"{rule.approvals} people"
    return Judgement(
        ruling=Ruling.APPROVE,
        reason=Reason.NEEDS_APPROVAL,
        message=rule.message or f"needs the approval of {count} ({roles})",
        policy=place,
        needs=rule.approvals,
        expire_seconds=rule.expire_seconds,
        approvers=tuple(rule.approvers),
    )


def _excess(limit: PolicyLimit, before: Effect, effect: Effect) -> str:
    """Return by what the limit would be exceeded; "" if it would not be."""
    after = before + effect
    window = f"in {limit.window_seconds} s"
    for noun in ("devices", "pods", "agents"):
        # What does not touch it is not stopped by it.
        if getattr(effect, noun) and getattr(after, noun) > getattr(limit, noun):
            return (
                f"limit {limit.name!r}: at most {getattr(limit, noun)} {noun} {window};"
                f" {getattr(before, noun)} were touched, this would touch {getattr(effect, noun)}"
            )
    if limit.spend and effect.spend and after.spend > parse_amount(limit.spend):
        return (
            f"limit {limit.name!r}: at most {limit.spend} credits per hour changed {window};"
            f" {format_credits(before.spend)} were, this would change"
            f" {format_credits(effect.spend)}"
        )
    return ""


def _denied(reason: Reason, message: str, place: str) -> Judgement:
    return Judgement(ruling=Ruling.DENY, reason=reason, message=message, policy=place)


def _variables(actor: GateActor, change: Prepared, fleet: FleetState, now: float) -> dict[str, Any]:
    """Return the variables of conditions. All fields exist, so that a misspelt one is an error."""
    action, target, effect = change.action, change.target, change.effect
    moment = datetime.datetime.fromtimestamp(now, datetime.UTC)
    return {
        "actor": {"name": actor.name, "role": actor.role.value},
        "action": {
            "kind": action.kind.value,
            "name": action.name,
            "namespace": action.namespace,
            "value": action.value,
        },
        "target": {
            "kind": target.kind,
            "name": target.name,
            "namespace": target.namespace,
            "agent": target.agent,
            "labels": dict(target.labels),
            "annotations": dict(target.annotations),
        },
        "effect": {
            "devices": effect.devices,
            "pods": effect.pods,
            "agents": effect.agents,
            "spendPerHour": effect.spend / MICRO,
        },
        "fleet": {
            "devices": fleet.devices,
            "leased": fleet.leased,
            "nodes": len(fleet.nodes),
            "agents": len(fleet.agents),
            "pods": len(fleet.pods),
        },
        "time": {
            "unix": int(now),
            "date": moment.strftime("%Y-%m-%d"),
            "weekday": moment.strftime("%A"),
            "hour": moment.hour,
            "minute": moment.minute,
        },
    }
