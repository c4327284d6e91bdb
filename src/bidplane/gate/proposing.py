"""
Proposals through their life: judged, approved or rejected by people, taken back.

Every step is an entry of the audit; `Subject.phase` tells what may come next, and the database
refuses a second decision of the same kind.
"""

from __future__ import annotations

from bidplane.api.gate.action import Action, Effect
from bidplane.api.gate.policy import ActorRole, Ruling
from bidplane.api.gate.proposal import (
    DEFAULT_PROPOSAL_SECONDS,
    ProposalPhase,
    ProposalSpec,
    Proposer,
)
from bidplane.api.kinds import PROPOSAL
from bidplane.api.manifests import manifest
from bidplane.api.reading import Invalid, Proposal, read_proposal
from bidplane.core.gate.actions import action_digest
from bidplane.core.gate.effects import (
    ActionImpossible,
    Prepared,
    is_carried_out,
    prepare,
)
from bidplane.core.gate.judgement import GateActor
from bidplane.core.gate.lifecycle import FINAL, ProposalEvent
from bidplane.errors import AlreadyExists, ApiError
from bidplane.gate.service import Gate, NeedsApproval, entry_of
from bidplane.ledger.audit.trail import AuditDetail, AuditEntry, Subject

_MOST_NAMES = 100  # of one action by one actor


class DecisionRefused(ApiError):
    """A decision on a Proposal that cannot be made."""

    code, reason = 409, "Conflict"


def actor_of_proposal(proposal: Proposal) -> GateActor:
    return GateActor(name=proposal.spec.proposer.name, role=proposal.spec.proposer.role)


async def propose(
    gate: Gate,
    actor: GateActor,
    action: Action,
    *,
    reason: str,
    undoes: str = "",
) -> str:
    """
    Create a Proposal in the name of an actor, and return its name; that of the one before, if the
    same actor already waits for the same action.
    """
    base = f"{actor.name}-{action_digest(action)[:8]}"
    spec = ProposalSpec(
        action=action,
        proposer=Proposer(name=actor.name, role=actor.role),
        reason=reason,
        undoes=undoes,
    )
    for number in range(1, _MOST_NAMES + 1):
        name = base if number == 1 else f"{base}-{number}"
        try:
            await gate.host.create(PROPOSAL, manifest(PROPOSAL, name, spec))
        except AlreadyExists:
            proposal = await find_proposal(gate, name)
            phase = (await gate.subject(proposal.uid)).phase
            if phase not in FINAL and proposal.spec.action == action:
                return name
            continue
        return name
    raise DecisionRefused(
        f"{actor.name} has {_MOST_NAMES} Proposals of this action: delete old ones"
    )


async def propose_instead(gate: Gate, needs: NeedsApproval) -> ApiError:
    """Make the Proposal of a write that needs approval, and return the write's refusal."""
    name = await propose(
        gate, needs.actor, needs.change.action, reason="a write to the host, which needs approval"
    )
    return ApiError(
        f"{needs.judgement.message} ({needs.judgement.policy}): Proposal {name} was made for it;"
        f" see `bidplane proposals show {name}`",
        code=403,
        reason="Forbidden",
    )


async def find_proposal(gate: Gate, name: str) -> Proposal:
    proposal = read_proposal(await gate.host.get(PROPOSAL, name))
    if isinstance(proposal, Invalid):
        raise DecisionRefused(f"Proposal {proposal}")
    return proposal


async def judge_proposal(gate: Gate, proposal: Proposal) -> Subject:
    """
    Judge a Proposal that is new, or waits: with the approvals it has, on the fleet as it is now.
    Returns what is known of it then.
    """
    async with gate.turn:
        subject = await gate.subject(proposal.uid)
        if subject.phase not in (None, ProposalPhase.WAITING):
            return subject
        entry = await _verdict(gate, proposal, subject)
        if entry is None:
            return subject
        await gate.record(lambda trail: trail.append(entry, at=gate.clock.now()))
        return await gate.subject(proposal.uid)


async def _verdict(gate: Gate, proposal: Proposal, subject: Subject) -> AuditEntry | None:
    """Return the entry that judges a Proposal; None if it goes on waiting."""
    actor, action = actor_of_proposal(proposal), proposal.spec.action
    waits = subject.phase is ProposalPhase.WAITING
    first = subject.verdict
    if waits and first is not None and first.details.expires_at <= gate.clock.now():
        return _entry(ProposalEvent.EXPIRED, proposal, None, "Expired", "nobody decided in time")
    if waits and not subject.approvals:
        return None
    fleet = await gate.fleet()
    try:
        change = prepare(action, fleet)
    except ActionImpossible as impossible:
        return _entry(
            ProposalEvent.DENIED, proposal, None, impossible.reason.value, str(impossible)
        )
    judgement = await gate.judge(
        actor, change, fleet, approvals=subject.approvals, but=proposal.uid
    )
    event = {
        Ruling.ALLOW: ProposalEvent.ALLOWED,
        Ruling.DENY: ProposalEvent.DENIED,
        Ruling.APPROVE: ProposalEvent.WAITS,
    }[judgement.ruling]
    if waits and event is ProposalEvent.WAITS:
        return None
    message = judgement.message
    if proposal.spec.shadow and event is not ProposalEvent.DENIED:
        event = ProposalEvent.SHADOWED
        message = f"would be {judgement.ruling}: {message}"
    seconds = judgement.expire_seconds or DEFAULT_PROPOSAL_SECONDS
    return _entry(
        event,
        proposal,
        change,
        judgement.reason.value,
        message,
        policy=judgement.policy,
        needs=judgement.needs,
        expires_at=int(gate.clock.now()) + seconds if event is ProposalEvent.WAITS else 0,
    )


def _entry(
    event: ProposalEvent,
    proposal: Proposal,
    change: Prepared | None,
    reason: str,
    message: str,
    *,
    policy: str = "",
    needs: int = 0,
    expires_at: int = 0,
) -> AuditEntry:
    spec = proposal.spec
    return entry_of(
        event,
        proposal.uid,
        actor_of_proposal(proposal),
        spec.action,
        reason=reason,
        message=message,
        policy=policy,
        effect=change.effect if change is not None else Effect(),
        detail=AuditDetail(
            action=spec.action,
            undo=change.undo if change is not None else None,
            reason=spec.reason,
            evidence=spec.evidence,
            observation=spec.observation,
            undoes=spec.undoes,
            needs=needs,
            expires_at=expires_at,
            proposal=proposal.name,
        ),
    )


# People's decisions.


async def approve(gate: Gate, actor: GateActor, name: str, digest: str) -> None:
    """Record the approval of exactly the action with that digest; raises `ApiError`."""
    async with gate.turn:
        proposal, subject = await _waiting(gate, name, digest)
        if actor.name == proposal.spec.proposer.name:
            raise _forbidden(f"{actor.name} proposed {name}: somebody else must approve it")
        if any(approval.name == actor.name for approval in subject.approvals):
            raise DecisionRefused(f"{actor.name} has approved {name} already")
        await _require_approver(gate, actor, proposal, subject)
        await _decide(gate, actor, proposal, ProposalEvent.APPROVED, f"approved by {actor.name}")


async def reject(gate: Gate, actor: GateActor, name: str, reason: str) -> None:
    """Record the rejection of a Proposal that waits; who proposed may withdraw it so."""
    async with gate.turn:
        proposal, _ = await _waiting(gate, name, "")
        roles = (ActorRole.OWNER, ActorRole.OPERATOR, ActorRole.APPROVER)
        if actor.role not in roles and actor.name != proposal.spec.proposer.name:
            raise _forbidden(f"{actor.role} {actor.name} may not reject {name}")
        message = f"rejected by {actor.name}" + (f": {reason}" if reason else "")
        await _decide(gate, actor, proposal, ProposalEvent.REJECTED, message)


async def take_back(gate: Gate, actor: GateActor, name: str) -> str:
    """Propose the undo of an applied Proposal, and return its name; raises `DecisionRefused`."""
    proposal = await find_proposal(gate, name)
    subject = await gate.subject(proposal.uid)
    if subject.phase is not ProposalPhase.APPLIED or subject.verdict is None:
        raise DecisionRefused(
            f"{name} is {subject.phase or 'not judged'}: only what was applied is undone"
        )
    undo = subject.verdict.details.undo
    if undo is None:
        raise DecisionRefused(f"{name}: {proposal.spec.action.kind} cannot be taken back")
    fleet = await gate.fleet()
    if not is_carried_out(proposal.spec.action, fleet):
        raise DecisionRefused(f"the undo of {name} no longer applies: its target was changed since")
    try:
        prepare(undo, fleet)
    except ActionImpossible as impossible:
        raise DecisionRefused(f"the undo of {name} no longer applies: {impossible}") from None
    return await propose(gate, actor, undo, reason=f"takes {name} back", undoes=name)


async def _waiting(gate: Gate, name: str, digest: str) -> tuple[Proposal, Subject]:
    """Return a Proposal that waits for people, whose action has that digest."""
    proposal = await find_proposal(gate, name)
    subject = await gate.subject(proposal.uid)
    if subject.phase is not ProposalPhase.WAITING or subject.verdict is None:
        raise DecisionRefused(f"{name} is {subject.phase or 'not judged yet'}: it waits for nobody")
    if subject.verdict.details.expires_at <= gate.clock.now():
        raise DecisionRefused(f"{name} has expired: make another Proposal")
    actual = action_digest(proposal.spec.action)
    if digest and digest != actual:
        raise DecisionRefused(
            f"{name} is about another action: its digest is {actual[:16]}…, not {digest[:16]}…;"
            " look at it again"
        )
    return proposal, subject


async def _require_approver(
    gate: Gate, actor: GateActor, proposal: Proposal, subject: Subject
) -> None:
    """Raise 403 unless an approval by this role counts with the Policies as they are now."""
    fleet = await gate.fleet()
    try:
        change = prepare(proposal.spec.action, fleet)
    except ActionImpossible as impossible:
        raise DecisionRefused(f"{proposal.name} no longer applies: {impossible}") from None
    judgement = await gate.judge(
        actor_of_proposal(proposal), change, fleet, approvals=subject.approvals, but=proposal.uid
    )
    if judgement.ruling is Ruling.APPROVE and actor.role not in judgement.approvers:
        roles = " or ".join(judgement.approvers)
        raise _forbidden(f"{actor.role} {actor.name} may not approve {proposal.name}: {roles} may")


async def _decide(
    gate: Gate, actor: GateActor, proposal: Proposal, event: ProposalEvent, message: str
) -> None:
    entry = entry_of(
        event,
        proposal.uid,
        actor,
        proposal.spec.action,
        reason=event.value,
        message=message,
        detail=AuditDetail(proposal=proposal.name),
    )
    await gate.record(lambda trail: trail.append(entry, at=gate.clock.now()))


def _forbidden(message: str) -> ApiError:
    return ApiError(message, code=403, reason="Forbidden")
