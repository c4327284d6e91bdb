"""The digest of a time, from the audit: each subject that was judged or ended in it, once."""

from __future__ import annotations

from bidplane.api.gate.proposal import ProposalPhase
from bidplane.api.times import rfc3339, rfc3339_ms
from bidplane.core.gate.digest import Digest, DigestLine
from bidplane.core.gate.lifecycle import ProposalEvent
from bidplane.ledger.audit.trail import MILLISECONDS, AuditEntry, AuditTrail, Subject

_REFUSED = (ProposalPhase.DENIED, ProposalPhase.REJECTED, ProposalPhase.EXPIRED)


def digest_of_day(trail: AuditTrail, *, begin: float, end: float) -> Digest | None:
    """Return the digest of a time that has ended; None if the audit began later."""
    first = trail.entries(limit=1)
    if not first or first[0].at > end * MILLISECONDS:
        return None
    return digest_of(trail, since=begin, now=end)


def digest_of(trail: AuditTrail, *, since: float, now: float) -> Digest:
    """Return what happened from `since` to `now`; what waits then, however old it is."""
    subjects: dict[str, list[AuditEntry]] = {}
    for entry in trail.entries():
        if entry.at > now * MILLISECONDS:
            break
        subjects.setdefault(entry.subject, []).append(entry)
    done: list[DigestLine] = []
    refused: list[DigestLine] = []
    waiting: list[DigestLine] = []
    failed: list[DigestLine] = []
    for id, entries in subjects.items():
        subject = Subject(id=id, entries=tuple(entries))
        phase, ended = subject.phase, _end(subject)
        if phase is ProposalPhase.WAITING:
            if subject.verdict is not None and subject.verdict.details.expires_at > now:
                waiting.append(_line(subject, ended))
            continue
        if ended.at <= since * MILLISECONDS:
            continue
        if phase is ProposalPhase.APPLIED:
            done.append(_line(subject, ended))
        elif phase in _REFUSED:
            refused.append(_line(subject, ended))
        elif phase is ProposalPhase.FAILED:
            failed.append(_line(subject, ended))
    return Digest(
        since=rfc3339(since),
        until=rfc3339(now),
        done=done,
        refused=refused,
        waiting=waiting,
        failed=failed,
    )


def _end(subject: Subject) -> AuditEntry:
    """Return the entry that gave a subject its phase: not a later measurement."""
    entries = [e for e in subject.entries if e.event is not ProposalEvent.MEASURED]
    return entries[-1]


def _line(subject: Subject, ended: AuditEntry) -> DigestLine:
    verdict = subject.verdict or ended
    action = verdict.details.action
    return DigestLine(
        at=rfc3339_ms(ended.at),
        actor=f"{verdict.role} {verdict.actor}",
        summary=str(action) if action is not None else f"{verdict.action} {verdict.target}",
        message=ended.message or verdict.message,
        effect=verdict.effect,
        kind=verdict.action,
        proposal=verdict.details.proposal,
    )
