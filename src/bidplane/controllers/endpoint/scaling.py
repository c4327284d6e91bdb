"""
Replicas of awake Endpoints: the needs of each are remembered here, decided in `core.activation`.

Nothing is stored. After a restart the window of every Endpoint begins anew, and no replica goes
before it is over.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import msgspec

from bidplane.api.endpoint import Drain, EndpointPhase, EndpointStatus
from bidplane.api.kinds import POD, Object
from bidplane.api.objects import metadata_of, spec_of, status_of
from bidplane.api.reading import Endpoint
from bidplane.core.activation import scaling
from bidplane.core.activation.lifecycle import EndpointPlan, Observed
from bidplane.core.workloads.replicasets import DELETION_COST
from bidplane.errors import NotFound
from bidplane.machinery.clock import Clock
from bidplane.machinery.planes import PlaneCache

_AWAKE = (EndpointPhase.WAKING, EndpointPhase.READY)
_FIRST = "-2147483648"  # the lowest cost of deletion: a ReplicaSet deletes this pod first


class ScaledStep(msgspec.Struct, frozen=True):
    """A step with its scaling; `going` are the pods that a ReplicaSet is to delete first."""

    step: EndpointPlan
    going: tuple[str, ...] = ()
    delete: tuple[str, ...] = ()
    again_after: float | None = None  # seconds


class ReplicaScaler:
    """Plans the replicas of awake Endpoints."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._needs: dict[str, tuple[int, scaling.Needs]] = {}  # by uid, with the demand's number

    def forget(self, uid: str) -> None:
        self._needs.pop(uid, None)

    def plan(self, endpoint: Endpoint, observed: Observed, step: EndpointPlan) -> ScaledStep:
        """Return the step with the replicas that the traffic needs."""
        previous = (endpoint.status or EndpointStatus()).drain
        if step.replicas is not None or step.status.phase not in _AWAKE:
            self.forget(endpoint.uid)
            return _drained(step, scaling.numbered(previous))
        if not scaling.is_scaled(endpoint.spec) and not previous.pods:
            return ScaledStep(step)
        assert observed.deployment is not None
        now, demand = self._clock.now(), step.status.demand
        number = demand.number if demand is not None else 0
        before_number, before = self._needs.get(endpoint.uid, (number, None))
        remembered = before if before_number == number else None
        needs = scaling.observe(remembered, endpoint.spec, demand, now=now)
        if needs is not None:
            self._needs[endpoint.uid] = (number, needs)
        current = spec_of(observed.deployment).get("replicas", 1)
        wished = scaling.target(endpoint.spec, current, needs, now=now)
        pods = [pod for pod in observed.pods if not pod.is_deleted and not pod.has_ended]
        scaled = scaling.plan(wished, current, pods, previous, demand)
        wait = scaling.wait_seconds(endpoint.spec, current, needs, now=now)
        planned = _drained(msgspec.structs.replace(step, replicas=scaled.replicas), scaled.drain)
        return msgspec.structs.replace(
            planned,
            going=scaled.drain.removed if scaled.drain != previous or scaled.replicas else (),
            delete=scaled.delete if _is_settled(observed.deployment) else (),
            again_after=wait or None,
        )


def _drained(step: EndpointPlan, drain: Drain) -> ScaledStep:
    status = msgspec.structs.replace(step.status, drain=drain)
    return ScaledStep(msgspec.structs.replace(step, status=status))


def _is_settled(deployment: Object) -> bool:
    """Tell if a Deployment has no more pods than it asks for: what it was to delete is ending."""
    status, spec = status_of(deployment), spec_of(deployment)
    if status.get("observedGeneration", 0) < metadata_of(deployment).get("generation", 0):
        return False
    has: int = status.get("replicas", 0)
    asks_for: int = spec.get("replicas", 1)
    return has <= asks_for


async def mark_for_deletion(plane: PlaneCache, namespace: str, pods: Iterable[str]) -> None:
    """Let the ReplicaSet delete these pods first."""
    change = {"metadata": {"annotations": {DELETION_COST: _FIRST}}}
    for name in pods:
        with suppress(NotFound):
            await plane.client.patch(POD, name, change, namespace)


async def delete_pods(plane: PlaneCache, namespace: str, pods: Iterable[str]) -> None:
    """Delete what a ReplicaSet chose to keep in place of another pod."""
    for name in pods:
        with suppress(NotFound):
            await plane.client.delete(POD, name, namespace)
