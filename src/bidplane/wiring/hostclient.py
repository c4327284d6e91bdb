"""The client of the host plane for our own processes and commands."""

from __future__ import annotations

from bidplane.api.gate.policy import ActorRole
from bidplane.gate.actors import group_of
from bidplane.kube.http import HttpClient
from bidplane.machinery.clock import Clock
from bidplane.pilot.loop import PILOT_NAME
from bidplane.runtime.identity.credentials import HOST_PLANE
from bidplane.runtime.installation import Installation


def host_client(installation: Installation, *, user: str, clock: Clock) -> HttpClient:
    return HttpClient(
        f"{installation.address().url}/planes/{HOST_PLANE}",
        token=lambda: installation.owner_token(user=user, now=clock.now()),
        ca_file=installation.ca_file,
    )


def pilot_client(installation: Installation, *, clock: Clock) -> HttpClient:
    """Return a client with the pilot's credential, which reads the fleet and proposes."""
    groups = (group_of(ActorRole.PILOT),)
    return HttpClient(
        f"{installation.address().url}/planes/{HOST_PLANE}",
        token=lambda: installation.host_token(user=PILOT_NAME, groups=groups, now=clock.now()),
        ca_file=installation.ca_file,
    )
