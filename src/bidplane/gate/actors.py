"""The actor behind a request: a person by name, the pilot, or a part of Bidplane, which is none."""

from __future__ import annotations

from collections.abc import Sequence

from bidplane.api.gate.policy import ActorRole
from bidplane.core.gate.judgement import GateActor
from bidplane.errors import UserError
from bidplane.runtime.identity.credentials import OWNERS, ROLE_PREFIX
from bidplane.wire.names import label_problems

# Parts of Bidplane: they carry out what was declared or decided.
COMPONENTS = frozenset(
    {
        "system:apiserver",
        "bidplane-exchange",
        "bidplane-node",
        "bidplane-server",
        "bidplane-up",
    }
)
_TAKEN_NAMES = frozenset({"owner", "host", "pilot"})
PEOPLE_ROLES = (ActorRole.OWNER, ActorRole.OPERATOR, ActorRole.APPROVER, ActorRole.FINANCE)


def group_of(role: ActorRole) -> str:
    """Return the group that a credential of the role is in."""
    return OWNERS if role is ActorRole.OWNER else f"{ROLE_PREFIX}{role}"


def actor_of(name: str, groups: Sequence[str]) -> GateActor | None:
    """Return the actor of an authenticated user; None for parts of Bidplane."""
    if name in COMPONENTS and OWNERS in groups:
        return None
    for role in (ActorRole.OWNER, *PEOPLE_ROLES, ActorRole.PILOT):
        if group_of(role) in groups:
            return GateActor(name=name, role=role)
    return GateActor(name=name, role=ActorRole.NONE)


def require_person_name(name: str) -> None:
    """Raise `UserError` for a name that no person can have."""
    if problems := label_problems(name):
        raise UserError(f"{name!r} cannot be a person's name: {problems[0]}")
    if name in _TAKEN_NAMES or name.startswith(("bidplane-", "system")):
        raise UserError(f"{name!r} is taken by a part of Bidplane: choose another name")
