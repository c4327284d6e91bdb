"""What a new plane already has as rows of its own: namespaces, and what is in each."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from bidplane.api.kinds import CONFIG_MAP, CRD, NAMESPACE, SERVICE_ACCOUNT, Kind
from bidplane.plane import ground
from bidplane.plane.admission import ROOT_CA
from bidplane.plane.call import Call
from bidplane.plane.plane import Plane
from bidplane.plane.verbs.create import create
from bidplane.plane.verbs.update import change

NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")


_DESCRIBED = "kubernetes.io/description"
_WHY = "The certificate authority of this API endpoint."


async def seed(plane: Plane, crds: Sequence[Mapping[str, Any]]) -> None:
    """Idempotent: what is there stays, and a CRD of ours that differs is brought up to date."""
    # All at once: a write sees the ones staged before it, and they commit together.
    await asyncio.gather(
        *(_ensure(plane, NAMESPACE, name) for name in NAMESPACES),
        *(furnish(plane, space) for space in NAMESPACES),
        *(_renew(plane, crd) for crd in crds),
    )


def _call(plane: Plane, kind: Kind, name: str = "", namespace: str = "") -> Call:
    return Call(resource=plane.registry.of(kind), name=name, namespace=namespace, warnings=[])


async def _ensure(plane: Plane, kind: Kind, name: str, namespace: str = "") -> None:
    call = _call(plane, kind, name, namespace)
    if plane.store.latest(call.key) is None:
        await create(plane, call, {"metadata": {"name": name}})


async def furnish(plane: Plane, namespace: str) -> None:
    """What every namespace has: an account to run as, and the certificate to trust."""
    # Together, so that they are one commit.
    await asyncio.gather(
        _ensure(plane, SERVICE_ACCOUNT, "default", namespace), _publish_ca(plane, namespace)
    )


async def _publish_ca(plane: Plane, namespace: str) -> None:
    call = _call(plane, CONFIG_MAP, ROOT_CA, namespace)
    held = plane.store.latest(call.key)
    if not plane.ca or (held is not None and held.obj.get("data") == {"ca.crt": plane.ca}):
        return
    told = {"metadata": {"name": ROOT_CA, "annotations": {_DESCRIBED: _WHY}}}
    if held is None:
        await create(plane, call, {**told, "data": {"ca.crt": plane.ca}})
    else:
        await change(plane, call, lambda old: {**old, "data": {"ca.crt": plane.ca}})


async def _renew(plane: Plane, crd: Mapping[str, Any]) -> None:
    """One that is a row of this plane was written by an older release, or by its user."""
    call = _call(plane, CRD, crd["metadata"]["name"])
    held = plane.store.latest(call.key)
    (ours,) = ground.definitions([crd])
    if held is not None and held.created and held.obj["spec"] != ours.obj["spec"]:
        await change(plane, call, lambda old: {**old, "spec": ours.obj["spec"]})
