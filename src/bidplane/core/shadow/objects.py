"""Pods with GPUs, and nodes that offer them, from Kubernetes' objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from bidplane.api.kinds import Object
from bidplane.api.objects import metadata_of, name_of, namespace_of, spec_of, status_of, uid_of
from bidplane.api.times import parse_or_zero
from bidplane.core.diagnosis.devices import is_whole_gpu
from bidplane.core.shadow.model import NodeGpus, ShadowPod
from bidplane.core.shadow.owners import owner_of

Claims = Mapping[tuple[str, str], Object]  # by namespace and name


def pod_of(pod: Object, claims: Claims, *, resource: str) -> ShadowPod | None:
    """Return what a pod asked for and had; None for a pod without GPUs."""
    gpus = peak_count(pod, resource) + sum(
        claimed_gpus(claim, user=uid_of(pod))
        for name in claim_names(pod)
        if (claim := claims.get((namespace_of(pod), name))) is not None
    )
    if gpus <= 0:
        return None
    references: Iterable[Mapping[str, str]] = metadata_of(pod).get("ownerReferences") or ()
    controller = next((r for r in references if r.get("controller")), {})
    return ShadowPod(
        namespace=namespace_of(pod),
        name=name_of(pod),
        owner=owner_of(controller.get("kind", ""), controller.get("name", ""), pod=name_of(pod)),
        gpus=gpus,
        created=float(parse_or_zero(metadata_of(pod).get("creationTimestamp") or "")),
        scheduled=_scheduled(pod),
        ended=_ended(pod),
    )


def peak_count(pod: Object, resource: str) -> int:
    """Return how many of an extended resource a pod needs at once."""
    spec = spec_of(pod)
    running = peak = 0
    for container in spec.get("initContainers") or ():
        count = _requested(container, resource)
        peak = max(peak, running + count)
        if container.get("restartPolicy") == "Always":  # a sidecar runs on beside the others
            running += count
    running += sum(_requested(c, resource) for c in spec.get("containers") or ())
    return max(peak, running)


def claim_names(pod: Object) -> Iterator[str]:
    """Yield the names of the ResourceClaims that a pod uses."""
    generated = {
        entry.get("name"): entry.get("resourceClaimName")
        for entry in status_of(pod).get("resourceClaimStatuses") or ()
    }
    for entry in spec_of(pod).get("resourceClaims") or ():
        name = entry.get("resourceClaimName") or generated.get(entry.get("name"))
        if name:
            yield name


def claimed_gpus(claim: Object, *, user: str) -> int:
    """
    Return the GPUs of a claim. A claim of several pods counts for the first of them only, and
    admin access, as of exporters, holds nothing. A class of GPUs has `gpu` in its name.
    """
    users = [entry.get("uid") for entry in status_of(claim).get("reservedFor") or ()]
    if user in users[1:]:
        return 0
    requests = {
        entry["name"]: _class_and_count(entry)
        for entry in spec_of(claim).get("devices", {}).get("requests") or ()
    }
    results = ((status_of(claim).get("allocation") or {}).get("devices") or {}).get("results") or ()
    if results:
        return sum(
            not result.get("adminAccess")
            and "gpu" in f"{result.get('driver')} {_class_of(result, requests)}".lower()
            for result in results
        )
    return sum(count for name, count in requests.values() if "gpu" in name.lower())


def nodes_of(nodes: Iterable[Object], slices: Iterable[Object], *, resource: str) -> list[NodeGpus]:
    """Return the nodes with GPUs: a device plugin's integers, or the whole GPUs of drivers."""
    counts: dict[str, int] = {}
    for slice_ in slices:
        spec = spec_of(slice_)
        node, driver = spec.get("nodeName") or "", spec.get("driver") or ""
        devices = [d for d in spec.get("devices") or () if is_whole_gpu(driver, d)]
        if devices and node:
            counts[node] = counts.get(node, 0) + len(devices)
    for node_object in nodes:
        count = _whole((status_of(node_object).get("allocatable") or {}).get(resource))
        name = name_of(node_object)
        if count:  # a node with both offers the same GPUs twice
            counts[name] = max(count, counts.get(name, 0))
    return [NodeGpus(name, count) for name, count in sorted(counts.items())]


def _requested(container: Object, resource: str) -> int:
    resources = container.get("resources") or {}
    return max(
        _whole((resources.get("limits") or {}).get(resource)),
        _whole((resources.get("requests") or {}).get(resource)),
    )


def _whole(quantity: object) -> int:
    text = str(quantity or "0")
    return int(text) if text.isdecimal() else 0


def _class_and_count(request: Object) -> tuple[str, int]:
    """The class and count of a request; of alternatives, those of the first."""
    choices = request.get("firstAvailable") or ()
    exactly = request.get("exactly") or (choices[0] if choices else request)
    if exactly.get("adminAccess"):
        return "", 0
    return exactly.get("deviceClassName") or "", int(exactly.get("count") or 1)


def _class_of(result: Object, requests: Mapping[str, tuple[str, int]]) -> str:
    name = (result.get("request") or "").partition("/")[0]
    return requests.get(name, ("", 0))[0]


def _scheduled(pod: Object) -> float | None:
    """The time at which the pod got its node."""
    for condition in status_of(pod).get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "True":
            return float(parse_or_zero(condition.get("lastTransitionTime") or "")) or None
    if not spec_of(pod).get("nodeName"):
        return None
    # Bound without kube-scheduler: it began when its kubelet saw it, or when it was created.
    started = parse_or_zero(status_of(pod).get("startTime") or "")
    return float(started or parse_or_zero(metadata_of(pod).get("creationTimestamp") or ""))


def _ended(pod: Object) -> float | None:
    """The time at which a pod's last container ended; None while one may run."""
    status = status_of(pod)
    if status.get("phase") not in ("Succeeded", "Failed"):
        return None
    finished = [
        parse_or_zero(((entry.get("state") or {}).get("terminated") or {}).get("finishedAt") or "")
        for entry in status.get("containerStatuses") or ()
    ]
    transitions = [
        parse_or_zero(condition.get("lastTransitionTime") or "")
        for condition in status.get("conditions") or ()
    ]
    return float(max(finished, default=0) or max(transitions, default=0)) or None
