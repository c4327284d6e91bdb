"""
The gate: the one road by which the listed actions are allowed.

A verdict and the beginning of what it allows are in the audit, on disk, before anything is done.
One verdict is made at a time, so that two changes cannot both have the last of a limit. Without the
audit nothing is allowed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec

from bidplane.api.gate.action import Action, Effect
from bidplane.api.gate.policy import ActorRole, PolicySpec, Ruling
from bidplane.api.kinds import POLICY
from bidplane.api.reading import Invalid, read_policy
from bidplane.core.gate.actions import SHAPES, action_digest
from bidplane.core.gate.effects import ActionImpossible, Impossible, Prepared, prepare
from bidplane.core.gate.fleet import FleetState
from bidplane.core.gate.judgement import (
    ActivePolicy,
    GateActor,
    GivenApproval,
    Judgement,
    judge,
)
from bidplane.core.gate.lifecycle import ProposalEvent
from bidplane.core.gate.measuring import scope_of
from bidplane.errors import ApiError, Unavailable, UserError
from bidplane.gate.observing import read_fleet
from bidplane.kube.client import KubeClient
from bidplane.ledger.audit.trail import AuditDetail, AuditEntry, AuditTrail, Subject
from bidplane.machinery.clock import Clock
from bidplane.storage.values import Damaged

T = TypeVar("T")


class Permit(msgspec.Struct, frozen=True, kw_only=True):
    """The allowed actions of one write, each begun in the audit under an id of its own."""

    actor: GateActor
    actions: tuple[Action, ...]
    subjects: tuple[str, ...] = ()  # none of a dry run


class NeedsApproval(Exception):
    """An action that somebody must approve first."""

    def __init__(self, actor: GateActor, change: Prepared, judgement: Judgement) -> None:
        super().__init__(judgement.message)
        self.actor, self.change, self.judgement = actor, change, judgement


class Gate:
    def __init__(
        self,
        host: KubeClient,
        open_trail: Callable[[], AuditTrail],
        *,
        clock: Clock,
        new_id: Callable[[], str],
        snapshot: Callable[[str, str], Awaitable[str]] | None = None,
        inline: bool = False,
    ) -> None:
        """
        `inline` writes on the event loop: the simulator's deterministic order. `snapshot` copies
        an agent's plane under a name, and returns the place of the copy.
        """
        self.snapshot = snapshot
        self.host, self.clock = host, clock
        self._open_trail, self._new_id, self._inline = open_trail, new_id, inline
        self._trail: AuditTrail | None = None
        self._database = asyncio.Lock()
        self.turn = asyncio.Lock()  # held from reading limits to writing the verdict

    def close(self) -> None:
        if self._trail is not None:
            self._trail.close()

    # What is, and what was.

    async def fleet(self) -> FleetState:
        """Return the fleet as the host shows it now."""
        return await read_fleet(self.host)

    async def policies(self) -> list[ActivePolicy]:
        policies: list[ActivePolicy] = []
        for obj in (await self.host.list(POLICY)).items:
            policy = read_policy(obj)
            version = str(obj["metadata"].get("resourceVersion", ""))
            if isinstance(policy, Invalid):
                policies.append(
                    ActivePolicy(
                        name=policy.name, version=version, spec=PolicySpec(), problem=policy.problem
                    )
                )
            elif not policy.is_deleted:
                policies.append(ActivePolicy(name=policy.name, version=version, spec=policy.spec))
        return policies

    async def record(self, read_or_write: Callable[[AuditTrail], T]) -> T:
        """Use the audit, off the event loop; raise `Unavailable` when it cannot be used."""

        def use() -> T:
            if self._trail is None:
                self._trail = self._open_trail()
            return read_or_write(self._trail)

        async with self._database:
            try:
                return use() if self._inline else await asyncio.to_thread(use)
            except (UserError, Damaged) as error:
                raise Unavailable(
                    f"the audit cannot be used, so nothing is changed: {error}"
                ) from (error)

    # Verdicts.

    async def judge(
        self,
        actor: GateActor,
        change: Prepared,
        fleet: FleetState,
        *,
        approvals: Sequence[GivenApproval] = (),
        before: Effect = Effect(),  # noqa: B008
        but: str = "",
    ) -> Judgement:
        """
        Return the verdict on a change. `before`: what earlier changes of the same write touch;
        `but`: the subject itself, which does not count against its own limits.
        """
        now = self.clock.now()
        policies = await self.policies()
        windows = {
            (limit.window_seconds, tuple(limit.roles))
            for policy in policies
            for limit in policy.spec.limits
        }

        def read(trail: AuditTrail) -> dict[tuple[int, tuple[ActorRole, ...]], Effect]:
            return {
                (seconds, roles): trail.usage(seconds, roles, now=now, but=but)
                for seconds, roles in windows
            }

        used = await self.record(read)
        return judge(
            policies,
            actor,
            change,
            fleet,
            usage=lambda seconds, roles: used[seconds, tuple(roles)] + before,
            approvals=approvals,
            now=now,
        )

    async def permit(
        self, actor: GateActor, actions: Sequence[Action], *, dry_run: bool = False
    ) -> Permit:
        """
        Allow a write with these actions, and record that; raises 403 for a denial, which is
        recorded as well, and `NeedsApproval`.
        """
        async with self.turn:
            fleet = await self.fleet()
            allowed: list[tuple[Prepared, Judgement]] = []
            touched = Effect()
            for action in actions:
                try:
                    change = prepare(action, fleet)
                except ActionImpossible as impossible:
                    if impossible.reason is Impossible.NOTHING_TO_DO:
                        continue
                    await self._deny(actor, action, impossible.reason, str(impossible), dry_run)
                    raise _refused(impossible.reason, str(impossible)) from None
                judgement = await self.judge(actor, change, fleet, before=touched)
                match judgement.ruling:
                    case Ruling.DENY:
                        await self._deny(
                            actor, action, judgement.reason, judgement.message, dry_run,
                            change, judgement.policy,
                        )  # fmt: skip
                        raise _refused(judgement.reason, judgement.message, judgement.policy)
                    case Ruling.APPROVE if len(actions) > 1:
                        names = " and ".join(action.kind for action in actions)
                        raise _refused(
                            judgement.reason,
                            f"{judgement.message}; it makes {names} at once: send one at a time",
                        )
                    case Ruling.APPROVE:
                        raise NeedsApproval(actor, change, judgement)
                    case Ruling.ALLOW:
                        allowed.append((change, judgement))
                        touched += change.effect
            if dry_run:
                return Permit(actor=actor, actions=tuple(actions))
            return await self._begin_write(actor, tuple(actions), allowed, fleet)

    async def _begin_write(
        self,
        actor: GateActor,
        actions: tuple[Action, ...],
        allowed: Sequence[tuple[Prepared, Judgement]],
        fleet: FleetState,
    ) -> Permit:
        entries: list[AuditEntry] = []
        subjects: list[str] = []
        for change, judgement in allowed:
            subjects.append(f"write-{self._new_id()}")
            verdict = entry_of(
                ProposalEvent.ALLOWED,
                subjects[-1],
                actor,
                change.action,
                reason=judgement.reason,
                message=judgement.message,
                policy=judgement.policy,
                effect=change.effect,
                detail=AuditDetail(
                    action=change.action,
                    undo=change.undo,
                    direct=True,
                    before=scope_of(change.action, fleet, change.lease),
                    lease=change.lease,
                ),
            )
            begun = entry_of(ProposalEvent.BEGUN, subjects[-1], actor, change.action)
            entries += [verdict, begun]
        if entries:
            await self.record(lambda trail: trail.append(*entries, at=self.clock.now()))
        return Permit(actor=actor, actions=actions, subjects=tuple(subjects))

    async def finish(self, permit: Permit, problem: str = "") -> None:
        """Record the outcome of a write: carried out, or the problem for which it was not."""
        event = ProposalEvent.FAILED if problem else ProposalEvent.APPLIED
        for subject_id in permit.subjects:
            await self.conclude(subject_id, event, problem or "the write was stored")

    async def conclude(self, subject_id: str, event: ProposalEvent, message: str) -> None:
        """Record the outcome of a subject, with the actor and action that its verdict has."""

        def write(trail: AuditTrail) -> None:
            verdict = trail.subject(subject_id).verdict
            assert verdict is not None, "no subject begins without a verdict"
            outcome = msgspec.structs.replace(
                verdict, event=event, reason=event.value.capitalize(), message=message, detail="{}"
            )
            trail.append(outcome, at=self.clock.now())

        await self.record(write)

    async def _deny(
        self,
        actor: GateActor,
        action: Action,
        reason: str,
        message: str,
        dry_run: bool,
        change: Prepared | None = None,
        policy: str = "",
    ) -> None:
        if dry_run:
            return
        entry = entry_of(
            ProposalEvent.DENIED,
            f"write-{self._new_id()}",
            actor,
            action,
            reason=reason,
            message=message,
            policy=policy,
            effect=change.effect if change is not None else Effect(),
            detail=AuditDetail(action=action, direct=True),
        )
        await self.record(lambda trail: trail.append(entry, at=self.clock.now()))

    async def subject(self, id: str) -> Subject:
        return await self.record(lambda trail: trail.subject(id))


def entry_of(
    event: ProposalEvent,
    subject: str,
    actor: GateActor,
    action: Action,
    *,
    reason: str = "",
    message: str = "",
    policy: str = "",
    effect: Effect = Effect(),  # noqa: B008
    detail: AuditDetail = AuditDetail(),  # noqa: B008
) -> AuditEntry:
    """Return an entry that is not in the chain yet."""
    place = f"{action.namespace}/{action.name}" if action.namespace else action.name
    return AuditEntry(
        sequence=0,
        at=0,
        event=event,
        subject=subject,
        actor=actor.name,
        role=actor.role,
        action=action.kind,
        target=f"{SHAPES[action.kind].target} {place}",
        digest=action_digest(action),
        reason=reason,
        message=message,
        policy=policy,
        devices=effect.devices,
        pods=effect.pods,
        agents=effect.agents,
        spend=effect.spend,
        detail=msgspec.json.encode(detail).decode(),
    )


def _refused(reason: str, message: str, policy: str = "") -> ApiError:
    place = f" ({policy})" if policy else ""
    return ApiError(f"refused by policy: {reason}: {message}{place}", code=403, reason="Forbidden")
