"""
Pods with ResourceClaims in an agent's plane.

A claim is allocated inside what the agent already leases, as kube-scheduler would: on a node that
its own bid won, or one of a Bid written by hand. Where there is no such room, a claim that can be
written as a block of the market becomes a bid; any other is refused, with the form to use.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from bidplane.api import labels
from bidplane.api.kinds import RESOURCE_CLAIM, Object
from bidplane.core import binding, portions
from bidplane.core.cel import CelError
from bidplane.core.cel import devices as cel
from bidplane.core.claimbids import as_bid
from bidplane.core.claims import ClaimError, read_claim, read_slices
from bidplane.core.claims.fast import Fleet, Placed
from bidplane.core.claims.hints import rewritten
from bidplane.core.claims.model import Claim, taken_by

_FINISHED = ("Succeeded", "Failed")
_LONGEST_NAME = 253
ADMIN_LABEL = "resource.kubernetes.io/admin-access"

Name = tuple[str, str]  # namespace, name


def _class(name: str, expression: str) -> Object:
    selectors = [{"cel": {"expression": expression}}]
    return {"metadata": {"name": name}, "spec": {"selectors": selectors}}


_KIND = (
    'has(device.attributes[device.driver].type) && device.attributes[device.driver].type == "{}"'
)
# In every plane, unless it has its own of that name: claims written for other clusters work here.
CLASSES: Mapping[str, Object] = {
    labels.DEVICE_CLASS: _class(labels.DEVICE_CLASS, "true"),
    "gpu.nvidia.com": _class("gpu.nvidia.com", _KIND.format("gpu")),
    "mig.nvidia.com": _class("mig.nvidia.com", _KIND.format("mig")),
}


class Devices(msgspec.Struct, frozen=True, kw_only=True):
    """What a plane says of devices."""

    claims: list[Object] = []
    templates: list[Object] = []
    slices: list[Object] = []
    classes: list[Object] = []
    namespaces: list[Object] = []  # those that may hold claims with admin access


class MakeClaim(msgspec.Struct, frozen=True):
    """Of a template, for one pod: `name` is the pod's word for it."""

    pod: Object
    name: str
    claim: dict[str, Any]


class AllocateClaim(msgspec.Struct, frozen=True):
    claim: Object
    status: dict[str, Any]


class ReleaseClaim(msgspec.Struct, frozen=True):
    """Its last pod is over: the devices are the agent's to use again."""

    claim: Object
    status: dict[str, Any]


class Wait(msgspec.Struct, frozen=True):
    reason: str
    message: str


class Bind(msgspec.Struct, frozen=True):
    node: str


class Market(msgspec.Struct, frozen=True):
    """No room in what is leased; this much of a bid would make some."""

    bid: dict[str, Any]
    why: str
    refusals: Mapping[str, str] = {}  # by a bid's reason: what the answer means for this claim


Operation = MakeClaim | AllocateClaim | ReleaseClaim
Decision = list[MakeClaim | AllocateClaim] | Wait | Bind | Market


def decide(devices: Devices, pod: Object, nodes: Sequence[str], *, now: float) -> Decision:
    """What to do next for a pending pod with claims; `nodes` are those it may use."""
    namespace = pod["metadata"]["namespace"]
    by_name = {_name(claim): claim for claim in devices.claims}
    found: list[Object] = []
    for reference in pod["spec"]["resourceClaims"]:
        name = claim_name(pod, reference)
        claim = by_name.get((namespace, name))
        if claim is not None:
            found.append(claim)
            continue
        if reference.get("resourceClaimName"):
            return Wait("ClaimNotFound", f'resourceclaim "{name}" not found: create it')
        template = next(
            (t for t in devices.templates if _name(t) == (namespace, _template(reference))), None
        )
        if template is None:
            missing = _template(reference)
            return Wait("ClaimNotFound", f'resourceclaimtemplate "{missing}" not found: create it')
        return [MakeClaim(pod, reference["name"], _made(pod, name, template))]
    try:
        return _allocated(devices, pod, found, nodes, now)
    except ClaimError as error:
        return Wait("BadClaim", str(error))


def _allocated(
    devices: Devices, pod: Object, objects: Sequence[Object], nodes: Sequence[str], now: float
) -> Decision:
    open_ = [claim for claim in objects if not _allocation(claim)]
    on = {node for claim in objects for node in _nodes_of(claim)}
    if len(on) > 1 or not on <= set(nodes):
        where = ", ".join(sorted(on))
        return Wait("ClaimElsewhere", f"a claim of the pod has devices on {where}, not usable now")
    if not open_:
        unreserved = [claim for claim in objects if not _is_reserved(claim, pod)]
        if unreserved:
            return [AllocateClaim(one, _reserved(one, pod)) for one in unreserved]
        return _prepared(objects, now=now) or Bind(next(iter(on)))
    claims = [read_claim(claim) for claim in open_]
    for claim in claims:
        _check_admin(claim, pod["metadata"]["namespace"], devices.namespaces)
        _check_selectors(claim)
    classes = {**CLASSES, **{one["metadata"]["name"]: one for one in devices.classes}}
    here = sorted(on) or list(nodes)
    fleet = Fleet(
        read_slices(devices.slices),
        {name: {} for name in here},
        classes,
        taken_by(devices.claims),
    )
    placed = fleet.place(claims)
    if isinstance(placed, Placed):
        return [
            AllocateClaim(
                one, {**_reserved(one, pod), "allocation": binding.stamped(allocation, now=now)}
            )
            for one, allocation in zip(open_, placed.allocations, strict=True)
        ]
    if len(objects) == 1 and (bid := as_bid(claims[0], classes)) is not None:
        return Market(bid, placed.reason, portions.refusals(claims[0]))
    return Wait("ClaimDoesNotFit", _refusal(claims, nodes))


def _prepared(
    claims: Sequence[Object], *, now: float
) -> list[MakeClaim | AllocateClaim] | Wait | None:
    """
    What devices with binding conditions are still waited for, as upstream does before it binds; a
    claim whose device failed, or took too long, is given another, or the same again.
    """
    for claim in claims:
        match binding.progress(claim, now=now):
            case binding.GivenUp():
                nothing = {"allocation": None, "reservedFor": None, "devices": None}
                return [AllocateClaim(claim, nothing)]
            case binding.Preparing(message=message):
                return Wait("DeviceNotReady", message)
    return None


def _check_admin(claim: Claim, namespace: str, known: Sequence[Object]) -> None:
    """Who may look at devices others use is said on the namespace, as upstream has it."""
    if not any(request.admin for choices in claim.requests for request in choices):
        return
    marks = next((n["metadata"].get("labels") for n in known if _is(n, namespace)), None) or {}
    if marks.get(ADMIN_LABEL) != "true":
        raise ClaimError(
            f"claim {claim.name}: admin access needs the label {ADMIN_LABEL}=true on the namespace"
            f" {namespace}"
        )


def _is(obj: Object, name: str) -> bool:
    return bool(obj["metadata"]["name"] == name)


def _check_selectors(claim: Claim) -> None:
    """What cannot be right on any device is said before there is one."""
    for choices in claim.requests:
        for request in choices:
            for at, source in enumerate(request.selectors):
                where = f"claim {claim.name}, request {request.full_name}, selector #{at}"
                taught = rewritten(source)
                if taught is not None:
                    raise ClaimError(f"{where}: nobody publishes what it asks for; write: {taught}")
                try:
                    cel.compile(source)
                except CelError as error:
                    raise ClaimError(f"{where}: {error}") from None


def _refusal(claims: Sequence[Claim], nodes: Sequence[str]) -> str:
    have = f"in what is leased ({', '.join(nodes)})" if nodes else "and nothing is leased"
    count = sum(min(r.count for r in choices) for c in claims for choices in c.requests)
    return (
        f"no devices as the claim wants them {have}, and it is no block the market sells: lease"
        f" first, with a Bid for {count} GPUs (spec: {{gpus: {count}, maxPrice: …}}), or claim"
        f" requests of class {labels.DEVICE_CLASS} with a count, and no constraint"
        " between them; beside these, devices that nobody sells, with a count and no constraint"
    )


def releases(devices: Devices, pods: Sequence[Object]) -> Iterator[ReleaseClaim]:
    """Claims whose pods are over, or gone."""
    live = {
        pod["metadata"]["uid"]
        for pod in pods
        if (pod.get("status") or {}).get("phase") not in _FINISHED
    }
    for claim in devices.claims:
        status = claim.get("status") or {}
        reserved = status.get("reservedFor") or []
        kept = [one for one in reserved if one.get("resource") != "pods" or one["uid"] in live]
        if kept == reserved:
            continue
        # A merge patch: what is None goes.
        yield ReleaseClaim(
            claim, {"reservedFor": kept} if kept else {"reservedFor": None, "allocation": None}
        )


def claim_name(pod: Object, reference: Object) -> str:
    """The claim a pod means: by name, or the one made of the template for it."""
    if reference.get("resourceClaimName"):
        return str(reference["resourceClaimName"])
    statuses = (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    for one in statuses:
        if one["name"] == reference["name"] and one.get("resourceClaimName"):
            return str(one["resourceClaimName"])
    metadata = pod["metadata"]
    digest = hashlib.sha256(f"{metadata['uid']}/{reference['name']}".encode()).hexdigest()[:8]
    return (
        f"{metadata['name']}-{reference['name']}"[: _LONGEST_NAME - 9].rstrip("-.") + f"-{digest}"
    )


def is_all_its_own(pod: Object) -> bool:
    """Whether each of its claims is made for it, of a template."""
    return not any(one.get("resourceClaimName") for one in pod["spec"]["resourceClaims"])


def shared_by(pod: Object, pods: Iterable[Object]) -> list[Object]:
    """The pod, and those of `pods` whose one claim is the one that it names."""
    return [pod, *(one for one in pods if one is not pod and _only(one) == _only(pod) != "")]


def _only(pod: Object) -> str:
    """The one claim that a pod names, with its namespace; "" if it has others, or its own."""
    claims = pod["spec"].get("resourceClaims") or []
    name = claims[0].get("resourceClaimName", "") if len(claims) == 1 else ""
    return f"{pod['metadata']['namespace']}/{name}" if name else ""


def nodes_taken(devices: Devices, pods: Sequence[Object]) -> dict[str, str]:
    """By pod's name, where its claims have devices already."""
    by_name = {_name(claim): claim for claim in devices.claims}
    found = {}
    for pod in pods:
        metadata = pod["metadata"]
        for reference in pod["spec"].get("resourceClaims") or ():
            claim = by_name.get((metadata["namespace"], claim_name(pod, reference)))
            for node in _nodes_of(claim) if claim is not None else ():
                found[metadata["name"]] = node
    return found


def _template(reference: Object) -> str:
    return str(reference.get("resourceClaimTemplateName") or "")


def _made(pod: Object, name: str, template: Object) -> dict[str, Any]:
    metadata = pod["metadata"]
    given = template["spec"].get("metadata") or {}
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
            **{key: given[key] for key in ("labels", "annotations") if given.get(key)},
            "name": name,
            "namespace": metadata["namespace"],
            "ownerReferences": [owner],
        },
        "spec": template["spec"]["spec"],
    }


def _name(obj: Object) -> Name:
    return obj["metadata"]["namespace"], obj["metadata"]["name"]


def _allocation(claim: Object) -> Object | None:
    return (claim.get("status") or {}).get("allocation")


def _nodes_of(claim: Object) -> set[str]:
    """A lease's node, its pool and its slice have one name."""
    results = ((_allocation(claim) or {}).get("devices") or {}).get("results") or ()
    return {result["pool"] for result in results}


def _is_reserved(claim: Object, pod: Object) -> bool:
    reserved = (claim.get("status") or {}).get("reservedFor") or ()
    return any(one["uid"] == pod["metadata"]["uid"] for one in reserved)


def _reserved(claim: Object, pod: Object) -> dict[str, Any]:
    metadata = pod["metadata"]
    others = (claim.get("status") or {}).get("reservedFor") or []
    consumer = {"resource": "pods", "name": metadata["name"], "uid": metadata["uid"]}
    return {"reservedFor": [*others, consumer]}


def devices_of(claims: Sequence[Object], driver: str) -> set[str]:
    """The names of the devices of a driver that claims have."""
    return {result["device"] for result in _results(claims) if result["driver"] == driver}


def has_others(claims: Sequence[Object], driver: str) -> bool:
    """Whether claims have devices of any other driver."""
    return any(result["driver"] != driver for result in _results(claims))


def _results(claims: Sequence[Object]) -> Iterator[Object]:
    for claim in claims:
        yield from ((_allocation(claim) or {}).get("devices") or {}).get("results") or ()
