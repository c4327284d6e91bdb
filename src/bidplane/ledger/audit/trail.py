"""
The audit's entries, and appending them.

An entry is about a subject: the uid of a Proposal, or the id of one request. A subject's phase is
what its entries make of it (`core/gate/lifecycle`); objects only show it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from bidplane.api.gate.action import Action, Effect
from bidplane.api.gate.policy import ActorRole
from bidplane.api.gate.proposal import ProposalPhase
from bidplane.core.gate.judgement import GivenApproval
from bidplane.core.gate.lifecycle import ProposalEvent, after
from bidplane.errors import UserError
from bidplane.ledger.records import Record
from bidplane.ledger.store import LedgerStore
from bidplane.ledger.stores import open_store
from bidplane.ledger.tables import Table
from bidplane.storage.chain import GENESIS, link

MILLISECONDS = 1000


class AuditDetail(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The parts of an entry that nobody searches for."""

    action: Action | None = None
    undo: Action | None = None
    reason: str = ""  # the proposer's
    evidence: list[str] = []
    observation: str = ""  # digest of what the proposer had observed
    undoes: str = ""
    direct: bool = False  # a write to the host, not a Proposal
    needs: int = 0
    expires_at: int = 0  # seconds
    proposal: str = ""  # the name of the Proposal
    before: Effect | None = None  # of what is measured: how much of it there was
    lease: str = ""  # of an evicted pod


class AuditEntry(Record, frozen=True, kw_only=True):
    sequence: int
    at: int  # milliseconds
    event: ProposalEvent
    subject: str
    actor: str
    role: ActorRole
    action: str = ""
    target: str = ""
    digest: str = ""  # of the action
    reason: str = ""
    message: str = ""
    policy: str = ""
    # Predicted with a verdict, measured with an outcome.
    devices: int = 0
    pods: int = 0
    agents: int = 0
    spend: int = 0
    detail: str = "{}"  # JSON of AuditDetail
    hash: bytes = b""

    @property
    def effect(self) -> Effect:
        return Effect(devices=self.devices, pods=self.pods, agents=self.agents, spend=self.spend)

    @property
    def details(self) -> AuditDetail:
        return msgspec.json.decode(self.detail, type=AuditDetail)


AUDIT = Table("audit", AuditEntry)


def payload_of(entry: AuditEntry) -> bytes:
    """Return everything that the entry's hash covers beside its number and time."""
    return msgspec.json.encode(AUDIT.row(entry)[2:-1])


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """The entries about one subject, and the state that follows from them."""

    id: str
    entries: tuple[AuditEntry, ...]

    @property
    def phase(self) -> ProposalPhase | None:
        phase: ProposalPhase | None = None
        for entry in self.entries:
            phase = after(phase, entry.event)
        return phase

    @property
    def verdict(self) -> AuditEntry | None:
        """The newest entry that judged it."""
        events = (ProposalEvent.ALLOWED, ProposalEvent.DENIED, ProposalEvent.WAITS)
        judged = (*events, ProposalEvent.SHADOWED)
        return next((e for e in reversed(self.entries) if e.event in judged), None)

    @property
    def outcome(self) -> AuditEntry | None:
        events = (ProposalEvent.APPLIED, ProposalEvent.FAILED)
        return next((entry for entry in self.entries if entry.event in events), None)

    @property
    def measured(self) -> AuditEntry | None:
        events = (ProposalEvent.MEASURED,)
        return next((entry for entry in self.entries if entry.event in events), None)

    @property
    def approvals(self) -> tuple[GivenApproval, ...]:
        return tuple(
            GivenApproval(name=entry.actor, role=entry.role, at=entry.at / MILLISECONDS)
            for entry in self.entries
            if entry.event is ProposalEvent.APPROVED
        )

    @property
    def last(self) -> AuditEntry:
        return self.entries[-1]


class AuditTrail:
    """Reads and appends; one process at a time appends, others wait for the database's lock."""

    def __init__(self, store: LedgerStore) -> None:
        self._store = store

    @classmethod
    def open(cls, location: Path | str, *, read_only: bool = False) -> AuditTrail:
        """
        Open the audit in a ledger that exists; raises `UserError` without one. The exchange creates
        the ledger: a new one here would hide that the old one was lost.
        """
        if isinstance(location, Path) and not (location.exists() and location.stat().st_size):
            raise UserError(f"{location} is not there: the exchange creates it when it starts")
        return cls(open_store(location, read_only=read_only))

    def __repr__(self) -> str:
        return f"<AuditTrail at {self.head.sequence if self.head else 0}>"

    def close(self) -> None:
        self._store.close()

    @property
    def head(self) -> AuditEntry | None:
        return self._store.last(AUDIT)

    def append(self, *entries: AuditEntry, at: float) -> list[AuditEntry]:
        """
        Append entries, all or none, on disk when this returns. Raises `WrongPhase` when a subject
        cannot have that event now: nobody decides or begins twice.
        """
        written: list[AuditEntry] = []
        with self._store.transaction():
            head = self.head
            number, before = (head.sequence, head.hash) if head else (0, GENESIS)
            # Time never goes back: a clock that did is read as standing still.
            moment = max(round(at * MILLISECONDS), head.at if head else 0)
            for entry in entries:
                after(self.subject(entry.subject).phase, entry.event)
                number += 1
                entry = msgspec.structs.replace(entry, sequence=number, at=moment)
                before = link(before, number, moment, payload_of(entry))
                entry = msgspec.structs.replace(entry, hash=before)
                self._store.insert(AUDIT, entry)
                written.append(entry)
        return written

    def subject(self, id: str) -> Subject:
        return Subject(id=id, entries=tuple(self._store.find(AUDIT, "subject = ?", id)))

    def entries(self, *, after_sequence: int = 0, limit: int = 0) -> list[AuditEntry]:
        return self._store.find(AUDIT, "sequence > ?", after_sequence, limit=limit)

    def unfinished(self) -> list[Subject]:
        """Return the subjects that were begun and have no outcome."""
        begun = self._store.find(AUDIT, "event = ?", ProposalEvent.BEGUN.value)
        subjects = (self.subject(entry.subject) for entry in begun)
        return [s for s in subjects if s.phase is ProposalPhase.APPLYING]

    def usage(
        self, window_seconds: int, roles: Sequence[ActorRole], *, now: float, but: str = ""
    ) -> Effect:
        """
        Return what changes of these roles (of all, if none is given) touched in the window: those
        that were allowed, unless they failed. `but`: the subject that is judged now.
        """
        since = round((now - window_seconds) * MILLISECONDS)
        rows = self._store.find(
            AUDIT,
            "at > ? AND (event = ? OR event = ?)",
            since,
            ProposalEvent.ALLOWED.value,
            ProposalEvent.FAILED.value,
        )
        failed = {row.subject for row in rows if row.event is ProposalEvent.FAILED}
        total = Effect()
        for row in rows:
            counts = row.event is ProposalEvent.ALLOWED and row.subject not in failed
            if counts and row.subject != but and (not roles or row.role in roles):
                total += row.effect
        return total
