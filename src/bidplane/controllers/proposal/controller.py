"""
One Proposal at a time: judge it, apply it when it is allowed, show in its status what is recorded.

The audit is the truth; a status that somebody edits is written again, and nothing follows from it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Literal

import msgspec

from bidplane.api.gate.action import Effect
from bidplane.api.gate.proposal import ProposalApproval, ProposalPhase, ProposalStatus
from bidplane.api.kinds import PROPOSAL, Object
from bidplane.api.objects import name_of
from bidplane.api.reading import Proposal
from bidplane.api.times import rfc3339, rfc3339_ms
from bidplane.core.gate.actions import action_digest
from bidplane.core.gate.lifecycle import FINAL
from bidplane.errors import NotFound
from bidplane.gate import applying, proposing
from bidplane.gate.service import Gate
from bidplane.kube.client import EventType
from bidplane.ledger.audit.trail import Subject
from bidplane.machinery.controller import Controller
from bidplane.machinery.events import Recorder
from bidplane.machinery.informer import Informer

_WORKERS = 1  # verdicts are made one at a time
# An ended Proposal is deleted after so long; the audit keeps all that was recorded about it.
KEEP_SECONDS = 7 * 86_400.0
_MOST_MESSAGE = 700  # characters; an Event's message has at most 1,024
# The phases of which people hear by an Event.
_TOLD: Mapping[ProposalPhase, tuple[Literal["Normal", "Warning"], str]] = {
    ProposalPhase.WAITING: ("Normal", "waits for an approval"),
    ProposalPhase.APPLIED: ("Normal", "was applied"),
    ProposalPhase.DENIED: ("Warning", "was denied"),
    ProposalPhase.REJECTED: ("Normal", "was rejected"),
    ProposalPhase.EXPIRED: ("Warning", "expired"),
    ProposalPhase.FAILED: ("Warning", "failed"),
}


class ProposalController:
    def __init__(self, gate: Gate, proposals: Informer) -> None:
        self._gate = gate
        self._recovered = False
        self._recorder = Recorder("bidplane-gate", clock=gate.clock)
        self.controller: Controller[str] = Controller("proposal", self.reconcile, workers=_WORKERS)
        proposals.on_change(self._changed)

    def _changed(self, event: EventType, obj: Object) -> None:
        if event != "DELETED":
            self.controller.add(name_of(obj))

    def add(self, name: str) -> None:
        """Look at a Proposal again: somebody decided on it."""
        self.controller.add(name)

    async def reconcile(self, name: str) -> float | None:
        """Take a Proposal as far as it goes now; return the delay until the next run."""
        gate = self._gate
        if not self._recovered:
            await applying.recover_writes(gate)
            self._recovered = True
        try:
            proposal = await proposing.find_proposal(gate, name)
        except (NotFound, proposing.DecisionRefused):
            return None
        subject = await proposing.judge_proposal(gate, proposal)
        if subject.phase in (ProposalPhase.ALLOWED, ProposalPhase.APPLYING):
            await self._show(proposal, subject)
            subject = await applying.apply(gate, proposal)
        delay: float | None = None
        if subject.phase is ProposalPhase.APPLIED and subject.measured is None:
            delay = self._until_measured(subject)
            if delay <= 0:
                subject = await applying.measure(gate, proposal)
                delay = None
        elif subject.phase is ProposalPhase.WAITING and subject.verdict is not None:
            delay = max(1.0, subject.verdict.details.expires_at - gate.clock.now())
        await self._show(proposal, subject)
        if delay is None and subject.phase in FINAL:
            return await self._delete_old(proposal, subject)
        return delay

    async def _delete_old(self, proposal: Proposal, subject: Subject) -> float | None:
        """Delete a Proposal that ended long ago; else return the delay until then."""
        delay = subject.last.at / 1000 + KEEP_SECONDS - self._gate.clock.now()
        if delay > 0:
            return delay
        with contextlib.suppress(NotFound):
            await self._gate.host.delete(PROPOSAL, proposal.name, uid=proposal.uid)
        return None

    def _until_measured(self, subject: Subject) -> float:
        assert subject.outcome is not None, "it was applied"
        due = subject.outcome.at / 1000 + applying.MEASURE_SECONDS
        return due - self._gate.clock.now()

    async def _show(self, proposal: Proposal, subject: Subject) -> None:
        status = status_of_subject(proposal, subject)
        if status is None or status == proposal.status:
            return
        if proposal.status is None or status.phase is not proposal.status.phase:
            await self._tell(proposal, status)
        change = {"status": msgspec.to_builtins(status)}
        await self._gate.host.patch(PROPOSAL, proposal.name, change, subresource="status")

    async def _tell(self, proposal: Proposal, status: ProposalStatus) -> None:
        """Write the Event of a new phase, before the status has it: after a crash it is there."""
        if status.phase not in _TOLD:
            return
        type, ending = _TOLD[status.phase]
        message = f"{status.summary}, proposed by {proposal.spec.proposer.name}, {ending}"
        if status.message:
            message += f": {status.message[:_MOST_MESSAGE]}"
        host, reason = self._gate.host, status.phase.value
        await self._recorder.record(host, proposal, reason, message, type=type, once=True)


def status_of_subject(proposal: Proposal, subject: Subject) -> ProposalStatus | None:
    """Return the status that shows a subject; None before it was judged."""
    phase, verdict, outcome = subject.phase, subject.verdict, subject.outcome
    if phase is None or verdict is None:
        return None
    detail, last = verdict.details, subject.last
    decided = last if phase in (ProposalPhase.REJECTED, ProposalPhase.EXPIRED) else verdict
    newest = outcome or decided
    undo = detail.undo if phase is ProposalPhase.APPLIED else None
    return ProposalStatus(
        phase=phase,
        digest=action_digest(proposal.spec.action),
        summary=str(proposal.spec.action),
        reason=verdict.reason if phase is ProposalPhase.APPLIED else newest.reason,
        message=newest.message,
        policy=verdict.policy,
        effect=verdict.effect,
        measured=subject.measured.effect if subject.measured is not None else Effect(),
        approvals=[
            ProposalApproval(name=a.name, role=a.role, at=rfc3339(a.at)) for a in subject.approvals
        ],
        needs=next((e.details.needs for e in subject.entries if e.details.needs), 0),
        undo=[undo] if undo is not None else [],
        expires_at=rfc3339(detail.expires_at) if detail.expires_at else "",
        applied_at=rfc3339_ms(outcome.at)
        if outcome is not None and phase is ProposalPhase.APPLIED
        else "",
        sequence=last.sequence,
    )
