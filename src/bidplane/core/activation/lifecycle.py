"""
The life of an Endpoint's target: from the state of its plane, the next step towards the demand.

    Asleep → Waking → Ready → Stopping → Asleep

A request must never reach a pod that is about to be deleted. So the activator stops sending before
it demands sleep, and what it demanded last is numbered: it uses no backends of a phase that answers
an earlier demand. And a target is scaled up only once every pod of its last life has begun to end:
whatever pod is there afterwards is a new one, which nobody is going to delete.

Pure: `plan` returns the status to write and the replicas to set.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from bidplane.api import labels
from bidplane.api.bid import BidReason
from bidplane.api.endpoint import (
    Backend,
    Demand,
    EndpointPhase,
    EndpointSpec,
    EndpointStatus,
    EndpointTarget,
)
from bidplane.api.kinds import Object
from bidplane.api.objects import annotations_of, condition_of, labels_of, spec_of
from bidplane.api.views import Pod
from bidplane.core.activation.hostassignment import HostAssignment
from bidplane.core.workloads.common import is_ready
from bidplane.core.workloads.endpointslices import ports

# A pod waits for these by itself; for anything else somebody has to act.
_WAITS = frozenset(
    [
        "Bidding",
        "WaitingForGang",
        BidReason.WON,
        BidReason.OUTBID,
        BidReason.BELOW_RESERVE,
        BidReason.NO_FREE_BLOCK,
        BidReason.DEVICE_TAKEN,
        BidReason.SELECTOR_PENDING,
        BidReason.NO_DEVICES,
    ]
)
_BROKEN = frozenset(
    [
        "CrashLoopBackOff",
        "ImagePullBackOff",
        "ErrImagePull",
        "InvalidImageName",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
        "StartError",
    ]
)


class Observed(msgspec.Struct, frozen=True):
    """
    The state of an Endpoint's target; `pods` are those that its Service selects.

    Their addresses are the host's: in its plane an agent can write any address into a pod's status,
    also one that only the activator reaches.
    """

    deployment: Object | None
    service: Object | None
    pods: Sequence[Pod]
    addresses: Mapping[str, str]  # by pod
    pod_failure: str = ""  # of the Deployment: why it cannot create a pod


class EndpointPlan(msgspec.Struct, frozen=True):
    """The status that an Endpoint has now, and the replicas to set; None leaves them."""

    status: EndpointStatus
    replicas: int | None = None


class Problem(msgspec.Struct, frozen=True):
    """A reason that a target does not serve; `failed` if it will not change by itself."""

    reason: str = ""
    message: str = ""
    failed: bool = False


def plan(
    spec: EndpointSpec, assignment: HostAssignment, observed: Observed, previous: EndpointStatus
) -> EndpointPlan:
    """Return the next step. The activator's part of the status is left as it is."""
    problem = _refusal(spec, assignment, observed)
    if problem is not None:
        return EndpointPlan(_status(previous, EndpointPhase.REFUSED, assignment, problem=problem))
    assert observed.deployment is not None
    replicas = spec_of(observed.deployment).get("replicas", 1)
    live = [pod for pod in observed.pods if not pod.is_deleted and not pod.has_ended]
    demand = previous.demand
    if demand is not None and demand.awake and replicas == 0:
        if live:  # of its last life: they are about to be deleted
            return EndpointPlan(_status(previous, EndpointPhase.STOPPING, assignment))
        status = _status(previous, EndpointPhase.WAKING, assignment, demand=demand)
        return EndpointPlan(status, replicas=spec.replicas)
    if demand is not None and not demand.awake and replicas > 0:
        status = _status(previous, EndpointPhase.STOPPING, assignment, demand=demand)
        return EndpointPlan(status, replicas=0)
    if replicas == 0:
        phase = EndpointPhase.STOPPING if live else EndpointPhase.ASLEEP
        return EndpointPlan(_status(previous, phase, assignment, demand=demand))
    backends = tuple(_backends(spec, observed, live))
    if any(backend.ready for backend in backends):
        status = _status(
            previous, EndpointPhase.READY, assignment, demand=demand, backends=backends
        )
    else:
        status = _status(
            previous,
            EndpointPhase.WAKING,
            assignment,
            demand=demand,
            backends=backends,
            problem=start_problem(live, observed.pod_failure),
        )
    return EndpointPlan(status)


def _status(
    previous: EndpointStatus,
    phase: EndpointPhase,
    assignment: HostAssignment,
    *,
    demand: Demand | None = None,
    backends: tuple[Backend, ...] = (),
    problem: Problem | None = None,
) -> EndpointStatus:
    """Return the status of a phase; `demand` is the one that it answers."""
    problem = problem or Problem()
    return msgspec.structs.replace(
        previous,
        phase=phase,
        host=assignment.hosts[0] if assignment.hosts else "",
        hosts=assignment.hosts,
        reason=problem.reason,
        message=problem.message,
        failed=problem.failed,
        backends=backends,
        answers=demand.number if demand is not None else previous.answers,
    )


def _refusal(spec: EndpointSpec, assignment: HostAssignment, observed: Observed) -> Problem | None:
    target = spec.target
    if assignment.reason:
        return Problem(assignment.reason, assignment.message)
    if observed.deployment is None:
        return Problem("NoDeployment", f"there is no Deployment {target.deployment}: create it")
    service = observed.service
    if service is None:
        return Problem("NoService", f"there is no Service {target.service}: create it")
    if not spec_of(service).get("selector"):
        return Problem("NoSelector", f"the Service {target.service} has no selector: give it one")
    service_ports = list(spec_of(service).get("ports") or ())
    if port_name(target, service) is None:
        has = ", ".join(f"{p['port']} {p.get('name', '')}".strip() for p in service_ports)
        wish = target.port_name or target.port or "no port"
        return Problem(
            "NoSuchPort", f"the Service {target.service} has {has or 'no ports'}, not {wish}"
        )
    template = labels_of(spec_of(observed.deployment).get("template") or {})
    if not spec_of(service)["selector"].items() <= template.items():
        return Problem(
            "SelectsOthers",
            f"the Service {target.service} does not select the pods of the Deployment"
            f" {target.deployment}: its selector must be among their labels",
        )
    return None


def port_name(target: EndpointTarget, service: Object) -> str | None:
    """Return the name of the Service's port that is the target; None if there is no such one."""
    service_ports = list(spec_of(service).get("ports") or ())
    if not target.port and not target.port_name:
        return service_ports[0].get("name", "") if len(service_ports) == 1 else None
    for port in service_ports:
        if target.port_name and port.get("name") == target.port_name:
            return target.port_name
        if target.port and port["port"] == target.port:
            name: str = port.get("name", "")
            return name
    return None


def fallback_spec(spec: EndpointSpec) -> EndpointSpec | None:
    """Return the Endpoint with its fallback as the target; None if it has none."""
    fallback = spec.fallback
    if fallback is None:
        return None
    target = EndpointTarget(
        deployment="",
        service=fallback.service,
        port=fallback.port,
        port_name=fallback.port_name,
    )
    return msgspec.structs.replace(spec, target=target)


def live_backends(spec: EndpointSpec, observed: Observed) -> tuple[Backend, ...]:
    """Return the pods of a target that serve; none without its Service."""
    if observed.service is None:
        return ()
    live = [pod for pod in observed.pods if not pod.is_deleted and not pod.has_ended]
    return tuple(backend for backend in _backends(spec, observed, live) if backend.ready)


def _backends(spec: EndpointSpec, observed: Observed, live: Sequence[Pod]) -> list[Backend]:
    assert observed.service is not None
    target_port = port_name(spec.target, observed.service)
    backends = []
    for pod in live:
        address = observed.addresses.get(pod.name)
        served: list[dict[str, Any]] = [dict(pairs) for pairs in ports(observed.service, pod)]
        numbers = [port["port"] for port in served if port.get("name", "") == target_port]
        if address and numbers:
            backends.append(
                Backend(pod=pod.name, address=address, port=numbers[0], ready=is_ready(pod))
            )
    return sorted(backends, key=lambda backend: backend.pod)


def start_problem(pods: Sequence[Pod], pod_failure: str = "") -> Problem:
    """Return why no pod serves yet, in the pods' own words."""
    if not pods and pod_failure:
        return Problem("FailedCreate", pod_failure, failed=True)
    problems = [_pod_problem(pod) for pod in pods]
    waiting = [problem for problem in problems if not problem.failed]
    # One that still may start is worth waiting for.
    return next(iter(waiting or problems), Problem())


def _pod_problem(pod: Pod) -> Problem:
    statuses = [
        *(pod.status.get("initContainerStatuses") or ()),
        *(pod.status.get("containerStatuses") or ()),
    ]
    for status in statuses:
        waiting = (status.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in _BROKEN:
            ended = (status.get("lastState") or {}).get("terminated") or {}
            exit_code = f" (exit code {ended['exitCode']})" if "exitCode" in ended else ""
            message = f"{waiting.get('message') or waiting['reason']}{exit_code}"
            return Problem(waiting["reason"], f"container {status['name']}: {message}", failed=True)
    explained = annotations_of(pod).get(labels.PENDING)
    if explained:
        try:
            details = json.loads(explained)
            reason, message = str(details["reason"]), str(details["message"])
        except (ValueError, KeyError, TypeError):
            return Problem()
        return Problem(reason, message, failed=reason not in _WAITS)
    scheduled = condition_of(pod, "PodScheduled")
    if scheduled is not None and scheduled.get("status") == "False":
        return Problem(scheduled.get("reason", ""), scheduled.get("message", ""))
    return Problem()
