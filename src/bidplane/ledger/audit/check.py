"""Verification of the audit: each hash again, from the first entry, and each subject's order."""

from __future__ import annotations

import msgspec

from bidplane.api.gate.proposal import ProposalPhase
from bidplane.core.gate.lifecycle import ProposalEvent, WrongPhase, after
from bidplane.ledger.audit.trail import AUDIT, payload_of
from bidplane.ledger.store import LedgerStore
from bidplane.storage.chain import GENESIS, link


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    entries: int = 0
    verdicts: int = 0
    outcomes: int = 0
    unfinished: int = 0
    head: str = GENESIS.hex()
    problem: str = ""

    @property
    def is_sound(self) -> bool:
        return not self.problem


_VERDICTS = (
    ProposalEvent.ALLOWED,
    ProposalEvent.DENIED,
    ProposalEvent.WAITS,
    ProposalEvent.SHADOWED,
)


def verify_audit(store: LedgerStore) -> AuditReport:
    """Replay the whole chain; the report names the first entry that is broken."""
    before, number, last_at = GENESIS, 0, 0
    phases: dict[str, ProposalPhase | None] = {}
    verdicts = outcomes = 0
    problem = ""
    with store.reading():
        for row in store.rows(AUDIT):
            name = f"entry {row[0]}"
            try:
                entry = AUDIT.record_of(row)
            except (msgspec.ValidationError, ValueError) as error:
                problem = f"{name} cannot be read: {error}"
                break
            if entry.sequence != number + 1:
                problem = f"{name} follows entry {number}: entries are missing"
            elif entry.at < last_at:
                problem = f"{name} is older than entry {number}"
            elif link(before, entry.sequence, entry.at, payload_of(entry)) != entry.hash:
                problem = f"{name} was changed, or an entry before it"
            else:
                try:
                    phases[entry.subject] = after(phases.get(entry.subject), entry.event)
                except WrongPhase as error:
                    problem = f"{name}: {error}"
            if problem:
                break
            verdicts += entry.event in _VERDICTS
            outcomes += entry.event in (ProposalEvent.APPLIED, ProposalEvent.FAILED)
            before, number, last_at = entry.hash, entry.sequence, entry.at
    return AuditReport(
        entries=number,
        verdicts=verdicts,
        outcomes=outcomes,
        unfinished=sum(phase is ProposalPhase.APPLYING for phase in phases.values()),
        head=before.hex(),
        problem=problem,
    )
