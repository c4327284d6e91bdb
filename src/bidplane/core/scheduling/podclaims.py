"""
Pods with ResourceClaims in an agent's plane.

A claim is allocated inside what the agent already leases, as kube-scheduler would do it: on a node
that the claim's own bid won, or on one of a Bid written by hand. Where nothing leased fits, a claim
that the market can sell becomes a bid; any other is refused, with the form to use.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from bidplane.api import labels
from bidplane.api.kinds import RESOURCE_CLAIM, Draft, Object
from bidplane.core.bidding import gpumemory
from bidplane.core.bidding.claimbids import as_bid
from bidplane.core.cel import CelError
from bidplane.core.cel import devices as cel
from bidplane.core.devices import bindingconditions
from bidplane.core.devices.claims import ClaimError, read_claim, read_slices
from bidplane.core.devices.claims.fast import DeviceIndex, Placed
from bidplane.core.devices.claims.hints import rewrite_selector
from bidplane.core.devices.claims.model import Claim, allocated_by

_FINISHED = ("Succeeded", "Failed")
_LONGEST_NAME = 253
ADMIN_LABEL = "resource.kubernetes.io/admin-access"

Name = tuple[str, str]  # namespace, name


def _device_class(name: str, expression: str) -> Object:
    """Return a DeviceClass with one selector."""
    selectors = [{"cel": {"expression": expression}}]
    return {"metadata": {"name": name}, "spec": {"selectors": selectors}}


_KIND = (
    'has(device.attributes[device.driver].type) && device.attributes[device.driver].type == "{}"'
)
# In every plane that has none of that name, so that claims written for other clusters work here.
CLASSES: Mapping[str, Object] = {
    labels.DEVICE_CLASS: _device_class(labels.DEVICE_CLASS, "true"),
    labels.NVIDIA_GPU_CLASS: _device_class(labels.NVIDIA_GPU_CLASS, _KIND.format("gpu")),
    labels.NVIDIA_MIG_CLASS: _device_class(labels.NVIDIA_MIG_CLASS, _KIND.format("mig")),
}


class Devices(msgspec.Struct, frozen=True, kw_only=True):
    """The objects of a plane that concern devices."""

    claims: list[Object] = []
    templates: list[Object] = []
    slices: list[Object] = []
    classes: list[Object] = []
    namespaces: list[Object] = []  # those that may hold claims with admin access


class MakeClaim(msgspec.Struct, frozen=True):
    """Create a claim from a template for one pod; `name` is the pod's name for the claim."""

    pod: Object
    name: str
    claim: Draft


class AllocateClaim(msgspec.Struct, frozen=True):
    """Set a claim's status: its allocation, or the pods it is reserved for."""

    claim: Object
    status: Draft


class ReleaseClaim(msgspec.Struct, frozen=True):
    """Free a claim's devices for the agent's next use: its last pod has ended."""

    claim: Object
    status: Draft


class Wait(msgspec.Struct, frozen=True):
    """The pod waits, for a reason."""

    reason: str
    message: str


class Bind(msgspec.Struct, frozen=True):
    """The pod can run on a node: all its claims are allocated, reserved and prepared."""

    node: str


class MarketNeed(msgspec.Struct, frozen=True):
    """A bid that would lease devices for a claim, because no leased node can satisfy it."""

    bid: Draft
    obstacle: str
    refusals: Mapping[str, str] = {}  # what each reason of a bid means for this claim


Operation = MakeClaim | AllocateClaim | ReleaseClaim
Decision = list[MakeClaim | AllocateClaim] | Wait | Bind | MarketNeed


def decide(devices: Devices, pod: Object, nodes: Sequence[str], *, now: float) -> Decision:
    """Return the next step for a pending pod with claims; `nodes` are those it may use."""
    namespace = pod["metadata"]["namespace"]
    by_name = {_namespaced_name(claim): claim for claim in devices.claims}
    claims: list[Object] = []
    for reference in pod["spec"]["resourceClaims"]:
        name = claim_name(pod, reference)
        claim = by_name.get((namespace, name))
        if claim is not None:
            claims.append(claim)
            continue
        if reference.get("resourceClaimName"):
            return Wait("ClaimNotFound", f'resourceclaim "{name}" not found: create it')
        template = next(
            (
                t
                for t in devices.templates
                if _namespaced_name(t) == (namespace, _template_name(reference))
            ),
            None,
        )
        if template is None:
            missing = _template_name(reference)
            return Wait("ClaimNotFound", f'resourceclaimtemplate "{missing}" not found: create it')
        return [MakeClaim(pod, reference["name"], _claim_from_template(pod, name, template))]
    try:
        return _allocate(devices, pod, claims, nodes, now)
    except ClaimError as error:
        return Wait("BadClaim", str(error))


def _allocate(
    devices: Devices, pod: Object, objects: Sequence[Object], nodes: Sequence[str], now: float
) -> Decision:
    """
    Return the next step for a pod whose claims all exist: allocate, reserve, bid, wait or bind.
    """
    unallocated = [claim for claim in objects if not _allocation(claim)]
    claimed_nodes = {node for claim in objects for node in _nodes_of(claim)}
    if len(claimed_nodes) > 1 or not claimed_nodes <= set(nodes):
        node_names = ", ".join(sorted(claimed_nodes))
        return Wait(
            "ClaimElsewhere",
            f"a claim of the pod has devices on {node_names}, which it cannot use now",
        )
    if not unallocated:
        unreserved = [claim for claim in objects if not _is_reserved(claim, pod)]
        if unreserved:
            return [AllocateClaim(claim, _reserved_for(claim, pod)) for claim in unreserved]
        return _preparation_step(objects, now=now) or Bind(next(iter(claimed_nodes)))
    claims = [read_claim(claim) for claim in unallocated]
    for claim in claims:
        _check_admin(claim, pod["metadata"]["namespace"], devices.namespaces)
        _check_selectors(claim)
    classes = {
        **CLASSES,
        **{device_class["metadata"]["name"]: device_class for device_class in devices.classes},
    }
    candidates = sorted(claimed_nodes) or list(nodes)
    fleet = DeviceIndex(
        read_slices(devices.slices),
        {name: {} for name in candidates},
        classes,
        allocated_by(devices.claims),
    )
    placed = fleet.place(claims)
    if isinstance(placed, Placed):
        return [
            AllocateClaim(
                claim,
                {
                    **_reserved_for(claim, pod),
                    "allocation": bindingconditions.stamped(allocation, now=now),
                },
            )
            for claim, allocation in zip(unallocated, placed.allocations, strict=True)
        ]
    if len(objects) == 1 and (bid := as_bid(claims[0], classes)) is not None:
        return MarketNeed(bid, placed.reason, gpumemory.refusals(claims[0]))
    return Wait("ClaimDoesNotFit", _refusal(claims, nodes))


def _preparation_step(
    claims: Sequence[Object], *, now: float
) -> list[MakeClaim | AllocateClaim] | Wait | None:
    """
    Return a wait for binding conditions, or the release of a failed device; None if all are ready.

    As kube-scheduler does before it binds. A claim whose device failed, or took too long, is
    allocated anew.
    """
    for claim in claims:
        match bindingconditions.progress(claim, now=now):
            case bindingconditions.GivenUp():
                cleared = {"allocation": None, "reservedFor": None, "devices": None}
                return [AllocateClaim(claim, cleared)]
            case bindingconditions.Preparing(message=message):
                return Wait("DeviceNotReady", message)
    return None


def _check_admin(claim: Claim, namespace: str, namespaces: Sequence[Object]) -> None:
    """
    Raise `ClaimError` for admin access in a namespace without the label for it, as upstream does.
    """
    if not any(request.admin for choices in claim.requests for request in choices):
        return
    namespace_labels = (
        next((n["metadata"].get("labels") for n in namespaces if _has_name(n, namespace)), None)
        or {}
    )
    if namespace_labels.get(ADMIN_LABEL) != "true":
        raise ClaimError(
            f"claim {claim.name}: admin access needs the label {ADMIN_LABEL}=true on the namespace"
            f" {namespace}"
        )


def _has_name(obj: Object, name: str) -> bool:
    return bool(obj["metadata"]["name"] == name)


def _check_selectors(claim: Claim) -> None:
    """Raise `ClaimError` for a selector that no device could match, before any device is there."""
    for choices in claim.requests:
        for request in choices:
            for index, source in enumerate(request.selectors):
                field = f"claim {claim.name}, request {request.full_name}, selector #{index}"
                rewritten_source = rewrite_selector(source)
                if rewritten_source is not None:
                    raise ClaimError(
                        f"{field}: no driver publishes this attribute; write: {rewritten_source}"
                    )
                try:
                    cel.compile(source)
                except CelError as error:
                    raise ClaimError(f"{field}: {error}") from None


def _refusal(claims: Sequence[Claim], nodes: Sequence[str]) -> str:
    """Return the message for a claim that fits nothing leased and that the market does not sell."""
    leased = f"in what is leased ({', '.join(nodes)})" if nodes else "and nothing is leased"
    count = sum(min(r.count for r in choices) for c in claims for choices in c.requests)
    return (
        f"no devices match the claim {leased}, and the market cannot sell it as written: lease"
        f" first, with a Bid for {count} GPUs (spec: {{gpus: {count}, maxPrice: …}}), or write"
        f" requests of class {labels.DEVICE_CLASS} with a count and no constraint between them;"
        " requests for devices without a price also need a count and no constraint"
    )


def releases(devices: Devices, pods: Sequence[Object]) -> Iterator[ReleaseClaim]:
    """Yield the release of each claim whose pods have ended or are gone."""
    live = {
        pod["metadata"]["uid"]
        for pod in pods
        if (pod.get("status") or {}).get("phase") not in _FINISHED
    }
    for claim in devices.claims:
        status = claim.get("status") or {}
        reserved = status.get("reservedFor") or []
        live_consumers = [
            consumer
            for consumer in reserved
            if consumer.get("resource") != "pods" or consumer["uid"] in live
        ]
        if live_consumers == reserved:
            continue
        # In a merge patch, None removes a field.
        yield ReleaseClaim(
            claim,
            {"reservedFor": live_consumers}
            if live_consumers
            else {"reservedFor": None, "allocation": None},
        )


def claim_name(pod: Object, reference: Object) -> str:
    """Return the claim that a reference means: the named one, or the one made from its template."""
    if reference.get("resourceClaimName"):
        return str(reference["resourceClaimName"])
    statuses = (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    for status in statuses:
        if status["name"] == reference["name"] and status.get("resourceClaimName"):
            return str(status["resourceClaimName"])
    metadata = pod["metadata"]
    digest = hashlib.sha256(f"{metadata['uid']}/{reference['name']}".encode()).hexdigest()[:8]
    return (
        f"{metadata['name']}-{reference['name']}"[: _LONGEST_NAME - 9].rstrip("-.") + f"-{digest}"
    )


def is_all_its_own(pod: Object) -> bool:
    """Return whether each claim of a pod is made for it from a template."""
    return not any(
        reference.get("resourceClaimName") for reference in pod["spec"]["resourceClaims"]
    )


def pods_sharing_claim(pod: Object, pods: Iterable[Object]) -> list[Object]:
    """Return the pod, and those of `pods` whose one claim is the one that it names."""
    return [
        pod,
        *(
            other
            for other in pods
            if other is not pod and _sole_claim(other) == _sole_claim(pod) != ""
        ),
    ]


def _sole_claim(pod: Object) -> str:
    """
    Return the one named claim of a pod, with its namespace; "" if it has others or a template's.
    """
    claims = pod["spec"].get("resourceClaims") or []
    name = claims[0].get("resourceClaimName", "") if len(claims) == 1 else ""
    return f"{pod['metadata']['namespace']}/{name}" if name else ""


def nodes_of_claims(devices: Devices, pods: Sequence[Object]) -> dict[str, str]:
    """Return, by pod name, the node on which its claims already have devices."""
    by_name = {_namespaced_name(claim): claim for claim in devices.claims}
    node_by_pod = {}
    for pod in pods:
        metadata = pod["metadata"]
        for reference in pod["spec"].get("resourceClaims") or ():
            claim = by_name.get((metadata["namespace"], claim_name(pod, reference)))
            for node in _nodes_of(claim) if claim is not None else ():
                node_by_pod[metadata["name"]] = node
    return node_by_pod


def _template_name(reference: Object) -> str:
    return str(reference.get("resourceClaimTemplateName") or "")


def _claim_from_template(pod: Object, name: str, template: Object) -> Draft:
    """Return the claim that a template makes for a pod."""
    metadata = pod["metadata"]
    template_metadata = template["spec"].get("metadata") or {}
    owner = {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
    }
    return {
        "apiVersion": RESOURCE_CLAIM.api_version,
        "kind": RESOURCE_CLAIM.kind,
        "metadata": {
            **{
                key: template_metadata[key]
                for key in ("labels", "annotations")
                if template_metadata.get(key)
            },
            "name": name,
            "namespace": metadata["namespace"],
            "ownerReferences": [owner],
        },
        "spec": template["spec"]["spec"],
    }


def _namespaced_name(obj: Object) -> Name:
    return obj["metadata"]["namespace"], obj["metadata"]["name"]


def _allocation(claim: Object) -> Object | None:
    return (claim.get("status") or {}).get("allocation")


def _nodes_of(claim: Object) -> set[str]:
    """Return the nodes of a claim's devices: a lease's node, pool and slice have the same name."""
    results = ((_allocation(claim) or {}).get("devices") or {}).get("results") or ()
    return {result["pool"] for result in results}


def _is_reserved(claim: Object, pod: Object) -> bool:
    reserved = (claim.get("status") or {}).get("reservedFor") or ()
    return any(consumer["uid"] == pod["metadata"]["uid"] for consumer in reserved)


def _reserved_for(claim: Object, pod: Object) -> Draft:
    """Return the status that reserves a claim for one more pod."""
    metadata = pod["metadata"]
    consumers = (claim.get("status") or {}).get("reservedFor") or []
    consumer = {"resource": "pods", "name": metadata["name"], "uid": metadata["uid"]}
    return {"reservedFor": [*consumers, consumer]}


def devices_of(claims: Sequence[Object], driver: str) -> set[str]:
    """Return the names of a driver's devices that claims have."""
    return {result["device"] for result in _results(claims) if result["driver"] == driver}


def has_others(claims: Sequence[Object], driver: str) -> bool:
    """Return whether claims have devices of any other driver."""
    return any(result["driver"] != driver for result in _results(claims))


def _results(claims: Sequence[Object]) -> Iterator[Object]:
    """Yield the allocated devices of all claims."""
    for claim in claims:
        yield from ((_allocation(claim) or {}).get("devices") or {}).get("results") or ()
