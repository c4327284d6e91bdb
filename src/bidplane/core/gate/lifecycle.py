"""
The life of a Proposal. Every transition that it can make is in the table.

A Proposal is applied only out of `Applying`, which is written before anything is done: whoever
finds one there after a crash looks whether it was carried out, and never begins it as new.
"""

from __future__ import annotations

import enum

from bidplane.api.gate.proposal import ProposalPhase as Phase


class ProposalEvent(enum.StrEnum):
    """The entries of the audit that change a Proposal's phase."""

    ALLOWED = "allowed"
    DENIED = "denied"
    WAITS = "waits"
    SHADOWED = "shadowed"
    APPROVED = "approved"  # by one person; the verdict follows
    REJECTED = "rejected"
    EXPIRED = "expired"
    BEGUN = "begun"
    APPLIED = "applied"
    FAILED = "failed"
    MEASURED = "measured"  # what it really touched, some time after


_NEW: dict[ProposalEvent, Phase] = {
    ProposalEvent.ALLOWED: Phase.ALLOWED,
    ProposalEvent.DENIED: Phase.DENIED,
    ProposalEvent.WAITS: Phase.WAITING,
    ProposalEvent.SHADOWED: Phase.SHADOW,
}

TRANSITIONS: dict[Phase | None, dict[ProposalEvent, Phase]] = {
    None: _NEW,
    Phase.WAITING: {
        ProposalEvent.APPROVED: Phase.WAITING,
        ProposalEvent.ALLOWED: Phase.ALLOWED,
        ProposalEvent.DENIED: Phase.DENIED,  # judged again once it is approved
        ProposalEvent.REJECTED: Phase.REJECTED,
        ProposalEvent.EXPIRED: Phase.EXPIRED,
    },
    Phase.ALLOWED: {ProposalEvent.BEGUN: Phase.APPLYING},
    Phase.APPLYING: {
        ProposalEvent.APPLIED: Phase.APPLIED,
        ProposalEvent.FAILED: Phase.FAILED,
    },
    Phase.SHADOW: {},
    Phase.DENIED: {},
    Phase.REJECTED: {},
    Phase.EXPIRED: {},
    Phase.APPLIED: {ProposalEvent.MEASURED: Phase.APPLIED},
    Phase.FAILED: {},
}

FINAL = frozenset(
    phase for phase, row in TRANSITIONS.items() if phase is not None and {phase} >= {*row.values()}
)


class WrongPhase(Exception):
    """A Proposal was to make a transition that is not in the table."""


def after(phase: Phase | None, event: ProposalEvent) -> Phase:
    """Return the phase that an event leads to; raises `WrongPhase`."""
    try:
        return TRANSITIONS[phase][event]
    except KeyError:
        raise WrongPhase(f"a Proposal that is {phase or 'new'} cannot be {event}") from None
