"""
The gate's place in a plane: a write to the host with listed actions waits for its permit.

Nothing here awaits. A write that needs a permit stops with `Unpermitted` before anything is stored;
its request asks the gate, and runs again with the permit (`http/objects`). It is permitted for
exactly these actions: if the object changed meanwhile, the actions are others, and it asks again.
"""

from __future__ import annotations

from bidplane.api.gate.action import Action
from bidplane.api.gate.policy import ActorRole
from bidplane.api.kinds import POD, PROPOSAL, Object
from bidplane.api.objects import spec_of
from bidplane.core.gate.changes import GATED_KINDS, WriteContent, content_of, eviction_of
from bidplane.core.gate.judgement import GateActor
from bidplane.gate.actors import actor_of
from bidplane.plane.call import Call
from bidplane.plane.plane import Plane
from bidplane.wire import status


class Unpermitted(Exception):
    """A write whose actions the gate has not judged yet."""

    def __init__(self, actor: GateActor, actions: tuple[Action, ...], *, dry_run: bool) -> None:
        super().__init__(", ".join(map(str, actions)))
        self.actor, self.actions, self.dry_run = actor, actions, dry_run


def require_permit(
    plane: Plane, call: Call, operation: str, new: Object | None, old: Object | None
) -> None:
    """Raise `Unpermitted` for actions without a permit, 403 for what only owners change."""
    if plane.gate is None or not call.enforced:
        return
    actor = actor_of(call.user.name, call.user.groups)
    if actor is None:
        return
    kind = call.resource.coordinates
    if kind == PROPOSAL:
        _check_proposal(call, actor, operation, new)
    if kind not in GATED_KINDS:
        return
    if call.subresource == "eviction":
        pod = plane.store.latest(call.key)
        content = eviction_of(pod.obj) if pod is not None and kind == POD else WriteContent()
    elif call.subresource:
        return
    else:
        content = content_of(kind, operation, new, old)
    if content.other and actor.role is not ActorRole.OWNER:
        raise status.forbidden(
            call.about,
            f"{actor.role} {actor.name} may change only what is a listed action of the gate;"
            " an owner changes the rest",
        )
    if any(action not in call.permitted for action in content.actions):
        raise Unpermitted(actor, content.actions, dry_run=call.dry_run)


def _check_proposal(call: Call, actor: GateActor, operation: str, new: Object | None) -> None:
    """Raise 403 for a Proposal in another's name, and for a status that is not the controller's."""
    if call.subresource == "status":
        raise status.forbidden(
            call.about, "the status of a Proposal shows the audit; decide with `bidplane proposals`"
        )
    if operation != "CREATE" or new is None:
        return
    proposer = spec_of(new).get("proposer") or {}
    if (proposer.get("name"), proposer.get("role")) != (actor.name, actor.role.value):
        raise status.forbidden(
            call.about,
            f"spec.proposer must be the sender: name {actor.name}, role {actor.role.value}",
        )
