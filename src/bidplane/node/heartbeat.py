"""A node's Lease, whose renewal shows that the node is alive."""

from __future__ import annotations

from contextlib import suppress

from bidplane.api.kinds import LEASE, NODE
from bidplane.api.times import rfc3339_micro
from bidplane.errors import AlreadyExists, NotFound
from bidplane.kube.client import KubeClient

RENEW_SECONDS = 10.0
_NAMESPACE = "kube-node-lease"
_SECONDS = 40


async def renew_lease(client: KubeClient, node: str, *, now: float) -> None:
    """Renew the node's Lease, created if it does not exist."""
    spec = {
        "holderIdentity": node,
        "leaseDurationSeconds": _SECONDS,
        "renewTime": rfc3339_micro(now),
    }
    try:
        await client.patch(LEASE, node, {"spec": spec}, _NAMESPACE)
    except NotFound:
        node_object = await client.get(NODE, node)
        owner = {
            "apiVersion": "v1",
            "kind": "Node",
            "name": node,
            "uid": node_object["metadata"]["uid"],
        }
        lease = {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.kind,
            "metadata": {"name": node, "namespace": _NAMESPACE, "ownerReferences": [owner]},
            "spec": spec,
        }
        with suppress(AlreadyExists):
            await client.create(LEASE, lease, _NAMESPACE)
