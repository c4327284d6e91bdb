"""
Carrying out what was allowed, once.

`begun` is in the audit before the host is touched. Whoever finds a subject begun and without an
outcome, after a crash, looks at the host first: a deletion names a uid, and a changed setting has
the Proposal's uid on the object, in the same write.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec

from bidplane.api import labels
from bidplane.api.gate.action import Action, ActionKind, Effect
from bidplane.api.gate.proposal import ProposalPhase
from bidplane.api.kinds import (
    AGENT,
    ENDPOINT,
    EVENT,
    GPU_LEASE,
    NODE,
    POD,
    POOL,
    PROPOSAL,
    Draft,
    Kind,
    Object,
)
from bidplane.api.objects import annotations_of
from bidplane.api.reading import Proposal
from bidplane.api.times import rfc3339
from bidplane.core.gate.drift import DRIFTING, parse_drift
from bidplane.core.gate.effects import ActionImpossible, is_carried_out, prepare
from bidplane.core.gate.lifecycle import ProposalEvent
from bidplane.core.gate.measuring import difference, scope_of
from bidplane.core.gate.snapshot import is_cordoned
from bidplane.errors import AlreadyExists, ApiError, Conflict, NotFound, Unavailable
from bidplane.gate.proposing import actor_of_proposal
from bidplane.gate.service import Gate, entry_of
from bidplane.ledger.audit.trail import AuditDetail, AuditTrail, Subject

MEASURE_SECONDS = 60.0  # after it was applied: a round has set prices, pods have ended

_KINDS: dict[ActionKind, Kind] = {
    ActionKind.EVICT_POD: POD,
    ActionKind.RELEASE_LEASE: GPU_LEASE,
    ActionKind.CORDON_NODE: NODE,
    ActionKind.PARK_NODE: NODE,
    ActionKind.RETURN_NODE: NODE,
    ActionKind.SET_FLOOR_PRICE: POOL,
    ActionKind.SET_IDLE_WINDOW: POOL,
    ActionKind.SET_REFILL: AGENT,
    ActionKind.SET_PRIORITY: AGENT,
    ActionKind.CONSOLIDATE_NODE: NODE,
    ActionKind.SCALE_ENDPOINT: ENDPOINT,
    ActionKind.PREWARM_ENDPOINT: ENDPOINT,
    ActionKind.SLEEP_ENDPOINT: ENDPOINT,
    ActionKind.RETRY_ROLLOUT: ENDPOINT,
}
_EVENTS_NAMESPACE = "default"
_DELETIONS = (ActionKind.EVICT_POD, ActionKind.RELEASE_LEASE)


async def apply(gate: Gate, proposal: Proposal) -> Subject:
    """Carry out a Proposal that is allowed, or was begun; return what is known of it then."""
    subject = await gate.subject(proposal.uid)
    if subject.phase is ProposalPhase.ALLOWED:
        problem = await _begin(gate, proposal)
        if problem:
            await gate.conclude(proposal.uid, ProposalEvent.FAILED, problem)
            return await gate.subject(proposal.uid)
    elif subject.phase is not ProposalPhase.APPLYING:
        return subject
    event, message = await _carry_out(gate, proposal)
    await gate.conclude(proposal.uid, event, message)
    return await gate.subject(proposal.uid)


async def _begin(gate: Gate, proposal: Proposal) -> str:
    """Record the beginning; return why it can no longer be carried out, "" if it can."""
    action, problem, lease = proposal.spec.action, "", ""
    fleet = await gate.fleet()
    try:
        lease = prepare(action, fleet).lease
    except ActionImpossible as impossible:
        problem = f"{impossible.reason}: {impossible}"
    entry = entry_of(
        ProposalEvent.BEGUN,
        proposal.uid,
        actor_of_proposal(proposal),
        action,
        detail=AuditDetail(
            proposal=proposal.name, before=scope_of(action, fleet, lease), lease=lease
        ),
    )
    await gate.record(lambda trail: trail.append(entry, at=gate.clock.now()))
    return problem


async def _carry_out(gate: Gate, proposal: Proposal) -> tuple[ProposalEvent, str]:
    """Do it, unless it was done; return the outcome. An unreachable host raises: try again."""
    action, host = proposal.spec.action, gate.host
    if is_carried_out(action, await gate.fleet()):
        return ProposalEvent.APPLIED, f"{action}: done"
    try:
        if action.kind is ActionKind.PAGE_PERSON:
            return await _page(gate, proposal)
        if action.kind is ActionKind.SNAPSHOT_PLANE:
            return await _snapshot(gate, proposal)
        kind = _kind_of(action)
        if action.kind in _DELETIONS:
            await host.delete(kind, action.name, action.namespace, uid=action.uid)
            return ProposalEvent.APPLIED, f"{action}: done"
        obj = await host.get(kind, action.name, action.namespace or None)
        if annotations_of(obj).get(labels.PROPOSAL_MARK) == proposal.uid:
            if action.kind is ActionKind.CONSOLIDATE_NODE and is_cordoned(obj):
                await _move_leases(gate, action.name)
                return ProposalEvent.APPLIED, f"{action}: done"
            return ProposalEvent.APPLIED, f"{action}: done, and changed by somebody since"
        if action.uid and obj["metadata"]["uid"] != action.uid:
            return ProposalEvent.FAILED, f"{action}: the target is gone"
        await host.patch(kind, action.name, _marked(proposal, obj), action.namespace or None)
        if action.kind is ActionKind.CONSOLIDATE_NODE:
            await _move_leases(gate, action.name)
    except (Unavailable, Conflict):
        raise
    except NotFound:
        return ProposalEvent.FAILED, f"{action}: the target is gone"
    except ApiError as error:
        return ProposalEvent.FAILED, f"{action}: the host refused it: {error}"
    return ProposalEvent.APPLIED, f"{action}: done"


def _kind_of(action: Action) -> Kind:
    if action.kind is ActionKind.REPAIR_DRIFT:
        return DRIFTING[parse_drift(action.value).kind]
    return _KINDS[action.kind]


def _marked(proposal: Proposal, obj: Object) -> Draft:
    """Return the change of an object, with the Proposal's mark in the same write."""
    action = proposal.spec.action
    change: Draft = {
        "metadata": {
            "annotations": {labels.PROPOSAL_MARK: proposal.uid, **_request(action, proposal.uid)},
            # The object that was looked at: nobody changed it meanwhile.
            "resourceVersion": obj["metadata"]["resourceVersion"],
        }
    }
    if _KINDS.get(action.kind) != ENDPOINT:
        change["spec"] = _spec_change(action)
    return change


def _request(action: Action, uid: str) -> dict[str, str]:
    """Return the annotation by which an Endpoint is asked for something; none of other kinds."""
    match action.kind:
        case ActionKind.PREWARM_ENDPOINT:
            return {labels.ENDPOINT_REQUEST: f"wake {uid}"}
        case ActionKind.SLEEP_ENDPOINT:
            return {labels.ENDPOINT_REQUEST: f"sleep {uid}"}
        case ActionKind.SCALE_ENDPOINT:
            return {labels.ENDPOINT_REPLICAS: action.value}
        case ActionKind.RETRY_ROLLOUT:
            return {labels.ENDPOINT_RETRY: uid}
    return {}


async def _move_leases(gate: Gate, node: str) -> None:
    """End the leases on a cordoned node: their agents win devices elsewhere."""
    for lease in (await gate.fleet()).leases:
        if lease.node == node:
            with suppress(NotFound):
                await gate.host.delete(GPU_LEASE, lease.name, lease.namespace, uid=lease.uid)


async def _page(gate: Gate, proposal: Proposal) -> tuple[ProposalEvent, str]:
    """Write the Event that pages a person, once: its name is the Proposal's uid."""
    action, now = proposal.spec.action, rfc3339(gate.clock.now())
    event: Draft = {
        "metadata": {"name": f"page-{proposal.uid}", "namespace": _EVENTS_NAMESPACE},
        "involvedObject": {
            "apiVersion": PROPOSAL.api_version,
            "kind": PROPOSAL.kind,
            "name": proposal.name,
            "uid": proposal.uid,
        },
        "type": "Warning",
        "reason": "Page",
        "message": f"{action.name}: {action.value}",
        "source": {"component": "bidplane"},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
    with suppress(AlreadyExists):
        await gate.host.create(EVENT, event, _EVENTS_NAMESPACE)
    return ProposalEvent.APPLIED, f"{action.name} was paged: {action.value}"


async def _snapshot(gate: Gate, proposal: Proposal) -> tuple[ProposalEvent, str]:
    """Write a plane's snapshot, named by the Proposal's uid: a second one replaces the first."""
    action = proposal.spec.action
    if gate.snapshot is None:
        return ProposalEvent.FAILED, f"{action}: planes are not kept here"
    path = await gate.snapshot(action.name, proposal.uid)
    return ProposalEvent.APPLIED, f"{action}: written to {path}"


def _spec_change(action: Action) -> Draft:
    match action.kind:
        case ActionKind.REPAIR_DRIFT:
            drift = parse_drift(action.value)
            return {drift.field: msgspec.json.decode(drift.value)}
        case ActionKind.CORDON_NODE | ActionKind.PARK_NODE | ActionKind.CONSOLIDATE_NODE:
            return {"unschedulable": True}
        case ActionKind.RETURN_NODE:
            return {"unschedulable": None}
        case ActionKind.SET_FLOOR_PRICE:
            return {"floorPrice": action.value}
        case ActionKind.SET_IDLE_WINDOW:
            return {"idleSeconds": int(action.value)}
        case ActionKind.SET_REFILL:
            return {"refill": action.value}
        case ActionKind.SET_PRIORITY:
            return {"priority": int(action.value)}
    raise AssertionError(f"{action.kind} deletes")


async def measure(gate: Gate, proposal: Proposal) -> Subject:
    """Record what an applied Proposal has changed since it was begun."""
    fleet = await gate.fleet()

    def write(trail: AuditTrail) -> Subject:
        subject = trail.subject(proposal.uid)
        begun = next((e for e in subject.entries if e.event is ProposalEvent.BEGUN), None)
        if begun is None or subject.phase is not ProposalPhase.APPLIED or subject.measured:
            return subject
        detail = begun.details
        now = scope_of(proposal.spec.action, fleet, detail.lease)
        effect = difference(detail.before or Effect(), now)
        entry = msgspec.structs.replace(
            begun,
            event=ProposalEvent.MEASURED,
            reason=ProposalEvent.MEASURED.value,
            devices=effect.devices,
            pods=effect.pods,
            agents=effect.agents,
            spend=effect.spend,
        )
        trail.append(entry, at=gate.clock.now())
        return trail.subject(proposal.uid)

    return await gate.record(write)


async def recover_writes(gate: Gate) -> int:
    """
    Give the writes to the host that a crash interrupted their outcome; return how many there were.
    """
    subjects = await gate.record(lambda trail: trail.unfinished())
    interrupted = 0
    for subject in subjects:
        verdict = subject.verdict
        if verdict is None or not verdict.details.direct or verdict.details.action is None:
            continue
        interrupted += 1
        if is_carried_out(verdict.details.action, await gate.fleet()):
            await gate.conclude(subject.id, ProposalEvent.APPLIED, "stored before a restart")
        else:
            await gate.conclude(subject.id, ProposalEvent.FAILED, "interrupted by a restart")
    return interrupted
