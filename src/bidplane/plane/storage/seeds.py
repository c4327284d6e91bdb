"""The first rows of a new plane: namespaces, and the default objects in each."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from bidplane.api.kinds import CONFIG_MAP, CRD, NAMESPACE, SERVICE_ACCOUNT, Kind
from bidplane.plane.admission.defaults import ROOT_CA
from bidplane.plane.call import Call
from bidplane.plane.plane import Plane
from bidplane.plane.storage import baseline
from bidplane.plane.verbs.create import create
from bidplane.plane.verbs.update import change

NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")


_DESCRIPTION_KEY = "kubernetes.io/description"
_DESCRIPTION = "The certificate authority of this API endpoint."


async def seed(plane: Plane, crds: Sequence[Mapping[str, Any]]) -> None:
    """
    Create the namespaces and their default objects, and update our CRDs. Idempotent: existing
    objects stay.
    """
    # All at once: a write sees the ones staged before it, and they commit together.
    await asyncio.gather(
        *(_ensure(plane, NAMESPACE, name) for name in NAMESPACES),
        *(add_namespace_defaults(plane, space) for space in NAMESPACES),
        *(_update_crd(plane, crd) for crd in crds),
    )


def _call(plane: Plane, kind: Kind, name: str = "", namespace: str = "") -> Call:
    return Call(resource=plane.registry.of(kind), name=name, namespace=namespace, warnings=[])


async def _ensure(plane: Plane, kind: Kind, name: str, namespace: str = "") -> None:
    call = _call(plane, kind, name, namespace)
    if plane.store.latest(call.key) is None:
        await create(plane, call, {"metadata": {"name": name}})


async def add_namespace_defaults(plane: Plane, namespace: str) -> None:
    """
    Create the default objects of a namespace: a service account, and the certificate to trust.
    """
    # Together, so that they are one commit.
    await asyncio.gather(
        _ensure(plane, SERVICE_ACCOUNT, "default", namespace), _publish_ca(plane, namespace)
    )


async def _publish_ca(plane: Plane, namespace: str) -> None:
    """Write the certificate of the plane's endpoint to a ConfigMap of the namespace."""
    call = _call(plane, CONFIG_MAP, ROOT_CA, namespace)
    existing = plane.store.latest(call.key)
    if not plane.ca or (existing is not None and existing.obj.get("data") == {"ca.crt": plane.ca}):
        return
    config_map = {"metadata": {"name": ROOT_CA, "annotations": {_DESCRIPTION_KEY: _DESCRIPTION}}}
    if existing is None:
        await create(plane, call, {**config_map, "data": {"ca.crt": plane.ca}})
    else:
        await change(plane, call, lambda old: {**old, "data": {"ca.crt": plane.ca}})


async def _update_crd(plane: Plane, crd: Mapping[str, Any]) -> None:
    """Update a CRD that is a row of this plane: an older release wrote it, or its user."""
    call = _call(plane, CRD, crd["metadata"]["name"])
    existing = plane.store.latest(call.key)
    (ours,) = baseline.definitions([crd])
    if existing is not None and existing.created and existing.obj["spec"] != ours.obj["spec"]:
        await change(plane, call, lambda old: {**old, "spec": ours.obj["spec"]})
