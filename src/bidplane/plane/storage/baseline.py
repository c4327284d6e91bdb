"""
Objects that every plane has and that use no space of it: default roles, the Service `kubernetes`,
and our own CRDs.

One copy serves all planes of a process. They are not rows in a plane's file: the store adds them
below the rows it has read. One that is changed becomes a row; one that is deleted is gone until the
plane is opened after a compaction, as a real server creates its default roles again when it starts.
They come with the release, so a plane that is opened by a newer release has the newer ones.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from bidplane.plane.registry import CRDS
from bidplane.plane.storage.feed import Item, Key
from bidplane.wire import rbac
from bidplane.wire.schema import crds

# One time for all: they come with the release, not with a plane.
_SINCE = "2026-01-01T00:00:00Z"
_UID_NAMESPACE = uuid.UUID("6f2a1c1e-6d0b-4a55-9d4b-0f3a5b1f7c11")

API_ADDRESS = "10.96.0.1"  # the first of the range of Services

# By identity: every plane passes the same few CRDs. They are referenced here, so that an id stays
# theirs.
_definition_cache: dict[int, tuple[Mapping[str, Any], Item]] = {}


@functools.cache
def roles() -> tuple[Item, ...]:
    return tuple(
        _item(Key(storage, obj["metadata"].get("namespace", ""), obj["metadata"]["name"]), obj)
        for storage, objects in rbac.defaults().items()
        for obj in objects
    )


@functools.cache
def services() -> tuple[Item, ...]:
    """
    Return the Service `default/kubernetes`, without endpoints.

    Many clients expect it. A Service names an address and a port, and a plane is at a path below
    them: pods find the plane through their environment, which wins over this Service.
    """
    meta = {"name": "kubernetes", "namespace": "default"}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {**meta, "labels": {"component": "apiserver", "provider": "kubernetes"}},
        "spec": {
            "clusterIP": API_ADDRESS,
            "clusterIPs": [API_ADDRESS],
            "internalTrafficPolicy": "Cluster",
            "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack",
            "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": 443}],
            "sessionAffinity": "None",
            "type": "ClusterIP",
        },
        "status": {"loadBalancer": {}},
    }
    endpoints = {"apiVersion": "v1", "kind": "Endpoints", "metadata": dict(meta)}
    slice_ = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {**meta, "labels": {"kubernetes.io/service-name": "kubernetes"}},
        "addressType": "IPv4",
        "endpoints": [],
        "ports": [{"name": "https", "port": 443, "protocol": "TCP"}],
    }
    return tuple(
        _item(Key(storage, "default", "kubernetes"), obj)
        for storage, obj in (
            ("services", service),
            ("endpoints", endpoints),
            ("endpointslices.discovery.k8s.io", slice_),
        )
    )


def definitions(crd_objects: Sequence[Mapping[str, Any]]) -> list[Item]:
    """Return the CRDs as established objects, as if created in the plane."""
    return [_definition(crd) for crd in crd_objects]


def _definition(crd: Mapping[str, Any]) -> Item:
    cached = _definition_cache.get(id(crd))
    if cached is None:
        obj = msgspec.json.decode(msgspec.json.encode(crd))
        crds.default(obj)
        obj["metadata"]["generation"] = 1
        obj["status"] = crds.established(obj, _SINCE)
        cached = _definition_cache[id(crd)] = (
            crd,
            _item(Key(CRDS, "", obj["metadata"]["name"]), obj),
        )
    return cached[1]


def _item(key: Key, obj: Mapping[str, Any]) -> Item:
    metadata = {
        **obj["metadata"],
        "uid": str(uuid.uuid5(_UID_NAMESPACE, str(key))),
        "resourceVersion": "1",
        "creationTimestamp": _SINCE,
    }
    complete = {**obj, "metadata": metadata}
    return Item(key, complete, msgspec.json.encode(complete), 0, 1)
