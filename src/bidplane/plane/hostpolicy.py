"""
The gate's objects on the host plane: the roles of people, and the Policy of a fresh installation.
"""

from __future__ import annotations

import contextlib

from bidplane.api.kinds import POLICY
from bidplane.api.manifests import manifest
from bidplane.core.gate.defaultpolicy import DEFAULT_POLICY, DEFAULT_POLICY_NAME
from bidplane.errors import AlreadyExists
from bidplane.gate.roles import ensure_roles
from bidplane.kube.client import KubeClient
from bidplane.plane.plane import Plane

_DEFAULT_POLICY = "defaultPolicy"  # a fact of the host plane: it was created once


async def prepare_gate(host: Plane, client: KubeClient) -> None:
    """
    Create the roles of people, and the Policy of a fresh installation. One that an owner deleted
    stays deleted.
    """
    await ensure_roles(client)
    if host.store.journal.fact(_DEFAULT_POLICY):
        return
    with contextlib.suppress(AlreadyExists):
        await client.create(POLICY, manifest(POLICY, DEFAULT_POLICY_NAME, DEFAULT_POLICY))
    await host.store.run_between_commits(lambda journal: journal.remember(_DEFAULT_POLICY, "1"))
