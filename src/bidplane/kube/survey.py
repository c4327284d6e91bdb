"""
Reads from a cluster what a diagnosis needs. Stores nothing: objects are sent with dryRun=All, and
access reviews are answers, not objects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from bidplane.api.kinds import (
    CRD,
    DEVICE_CLASS,
    NAMESPACE,
    NODE,
    POD,
    RESOURCE_CLAIM,
    RESOURCE_SLICE,
    Draft,
    Kind,
    Object,
)
from bidplane.core.diagnosis.model import ClusterFacts, DryRun, Right
from bidplane.core.diagnosis.rights import needed
from bidplane.errors import ApiError, NotFound, Unavailable
from bidplane.kube.http import HttpClient, path_of

_ADMISSION = ("admissionregistration.k8s.io", "v1")
_MUTATING = Kind(
    *_ADMISSION, "MutatingWebhookConfiguration", "mutatingwebhookconfigurations", namespaced=False
)
_VALIDATING = Kind(
    *_ADMISSION,
    "ValidatingWebhookConfiguration",
    "validatingwebhookconfigurations",
    namespaced=False,
)
_DRA = "resource.k8s.io"
_CLASS = "bidplane-doctor"  # no object of that name needs to exist
_PARALLEL = 8  # access reviews at once
_HALF_A_SECOND = 0.5  # the header Date has whole seconds


async def survey(client: HttpClient, *, now: Callable[[], float]) -> ClusterFacts:
    """Return the facts of a cluster; raises `ApiError` if it does not answer at all."""
    before = now()
    answer = (await client.request("GET", "/version")).accepted()
    clock = (before + now()) / 2
    try:
        version = msgspec.json.decode(answer.body, type=dict[str, Any]).get("gitVersion", "")
    except msgspec.MsgspecError as error:
        raise Unavailable(f"{client.url} is no Kubernetes API: {error}") from error
    date = answer.headers.get("date")
    served = await _served(client)
    unread: dict[str, str] = {}

    async def listed(*kinds: Kind) -> Sequence[Object]:
        objects: list[Object] = []
        for kind in kinds:
            try:
                objects += (await client.list(kind)).items
            except NotFound:
                continue  # not served: the check of the APIs tells
            except ApiError as error:
                unread[str(kind)] = str(error)
        return objects

    return ClusterFacts(
        version=str(version),
        served=served,
        denied=await _denied(client, needed(served)),
        nodes=await listed(NODE),
        pods=await listed(POD),
        namespaces=await listed(NAMESPACE),
        slices=await listed(RESOURCE_SLICE),
        claims=await listed(RESOURCE_CLAIM),
        device_classes=await listed(DEVICE_CLASS),
        definitions=await listed(CRD),
        webhooks=await listed(_MUTATING, _VALIDATING),
        claim=await _dry_run(client, RESOURCE_CLAIM, _claim()) if served else None,
        pod=await _dry_run(client, POD, _pod()),
        unread=unread,
        clock_behind=_behind(date, clock) if date else None,
    )


def _behind(date: str, clock: float) -> float:
    """Return by how many seconds the API server's clock is behind ours."""
    return clock - parsedate_to_datetime(date).timestamp() - _HALF_A_SECOND


async def _served(client: HttpClient) -> frozenset[str]:
    """Return the resources of DRA's API group, in every version that is served."""
    answer = await client.request("GET", f"/apis/{_DRA}")
    if answer.code == 404:
        return frozenset()
    group = msgspec.json.decode(answer.accepted().body, type=dict[str, Any])
    resources: list[str] = []
    for version in group.get("versions") or ():
        path = str(version["groupVersion"])
        page = (await client.request("GET", f"/apis/{path}")).accepted()
        entries = msgspec.json.decode(page.body, type=dict[str, Any]).get("resources") or ()
        resources += [f"{path}/{entry['name']}" for entry in entries]
    return frozenset(resources)


async def _denied(client: HttpClient, rights: Iterable[Right]) -> list[Right]:
    """Return the rights that the account lacks, by the cluster's own reviews."""
    gate = asyncio.Semaphore(_PARALLEL)

    async def is_allowed(right: Right) -> bool:
        plural, _, subresource = right.resource.partition("/")
        attributes = {
            "verb": right.verb,
            "group": right.group,
            "resource": plural,
            "subresource": subresource,
        }
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        async with gate:
            answer = (await client.request("POST", path, body=review)).accepted()
        status = msgspec.json.decode(answer.body, type=dict[str, Any]).get("status") or {}
        return bool(status.get("allowed"))

    listed = list(rights)
    allowed = await asyncio.gather(*map(is_allowed, listed))
    return [right for right, is_granted in zip(listed, allowed, strict=True) if not is_granted]


async def _dry_run(client: HttpClient, kind: Kind, obj: Object) -> DryRun:
    path = path_of(kind, "default")
    answer = await client.request("POST", path, params={"dryRun": "All"}, body=obj)
    try:
        body = answer.accepted().body
    except ApiError as error:
        return DryRun(sent=obj, stored=None, refusal=str(error))
    return DryRun(sent=obj, stored=msgspec.json.decode(body, type=dict[str, Any]))


def _claim() -> Draft:
    """A claim that uses each field that needs a feature gate."""
    exactly = {
        "deviceClassName": _CLASS,
        "tolerations": [{"key": "bidplane.dev/for-sale", "operator": "Exists"}],
        "capacity": {"requests": {"memory": "1Gi"}},
    }
    requests = [
        {"name": "exact", "exactly": exactly},
        {"name": "choice", "firstAvailable": [{"name": "only", "deviceClassName": _CLASS}]},
    ]
    return {
        "apiVersion": RESOURCE_CLAIM.api_version,
        "kind": RESOURCE_CLAIM.kind,
        "metadata": {"generateName": "bidplane-doctor-"},
        "spec": {"devices": {"requests": requests}},
    }


def _pod() -> Draft:
    """A pod as a lease's: of one node, with a claim, and as restricted as it can be."""
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    confined = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "runAsUser": 65534,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    amounts = {"cpu": "100m", "memory": "64Mi"}
    container = {
        "name": "main",
        "image": "registry.invalid/bidplane/doctor:1",
        "resources": {
            "claims": [{"name": "gpus"}],
            "requests": amounts,
            "limits": amounts,
        },
        "securityContext": confined,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "bidplane-doctor-"},
        "spec": {
            "automountServiceAccountToken": False,
            "affinity": {"nodeAffinity": required},
            "containers": [container],
            "resourceClaims": [{"name": "gpus", "resourceClaimName": "bidplane-doctor"}],
        },
    }
