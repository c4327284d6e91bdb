"""
`Proposal`: one intended change, by the pilot or a person, with its verdict, effect and undo.

The spec never changes: verdicts and approvals are for exactly this action. The status is a
projection of the audit in the ledger's database, written by the proposal controller alone.
"""

from __future__ import annotations

import enum
from typing import Annotated, Any, ClassVar

import msgspec

from bidplane.api.gate.action import Action, Effect
from bidplane.api.gate.policy import ActorRole

_MOST_REASON = 2048
_MOST_EVIDENCE = 32

# Long enough for a night; a proposal that nobody decided on by then describes another fleet.
DEFAULT_PROPOSAL_SECONDS = 24 * 3600


class ProposalPhase(enum.StrEnum):
    """The phases of a Proposal; `core/gate/lifecycle` has the table of transitions."""

    WAITING = "Waiting"  # for approval
    ALLOWED = "Allowed"  # may be applied, and will be
    SHADOW = "Shadow"  # judged, and not to be applied
    DENIED = "Denied"
    REJECTED = "Rejected"  # by a person
    EXPIRED = "Expired"
    APPLYING = "Applying"  # from here on it is not begun again
    APPLIED = "Applied"
    FAILED = "Failed"


class Proposer(msgspec.Struct, frozen=True, kw_only=True):
    """The actor that asks; admission refuses one that is not the sender."""

    name: str
    role: ActorRole


class ProposalSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    VALIDATIONS: ClassVar[list[dict[str, Any]]] = [
        {"rule": "self == oldSelf", "message": "a Proposal never changes: make another one"}
    ]

    action: Action
    proposer: Proposer
    reason: Annotated[str, msgspec.Meta(extra_json_schema={"maxLength": _MOST_REASON})] = ""
    evidence: Annotated[
        list[Annotated[str, msgspec.Meta(extra_json_schema={"maxLength": 512})]],
        msgspec.Meta(max_length=_MOST_EVIDENCE),
    ] = []
    observation: Annotated[str, msgspec.Meta(extra_json_schema={"maxLength": 128})] = ""  # digest
    shadow: bool = False  # judge and record, apply nothing
    # The proposal that this one takes back.
    undoes: Annotated[str, msgspec.Meta(extra_json_schema={"maxLength": 253})] = ""


class ProposalApproval(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    role: ActorRole
    at: str


class ProposalStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    phase: ProposalPhase
    digest: str = ""  # of the action: an approval names it
    summary: str = ""
    reason: str = ""  # of the verdict or outcome, one word
    message: str = ""
    policy: str = ""  # and its version, that decided
    effect: Effect = Effect()  # computed before the verdict
    measured: Effect = Effect()  # observed afterwards
    approvals: list[ProposalApproval] = []
    needs: int = 0  # approvals in all
    undo: list[Action] = []  # at most one; none of what cannot be taken back
    expires_at: str = ""
    applied_at: str = ""
    sequence: int = 0  # the audit's, of the last entry
