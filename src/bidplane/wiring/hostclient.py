"""The client of the host plane for our own processes and commands."""

from __future__ import annotations

from bidplane.kube.http import HttpClient
from bidplane.machinery.clock import Clock
from bidplane.runtime.identity.credentials import HOST_PLANE
from bidplane.runtime.installation import Installation


def host_client(installation: Installation, *, user: str, clock: Clock) -> HttpClient:
    return HttpClient(
        f"{installation.address().url}/planes/{HOST_PLANE}",
        token=lambda: installation.owner_token(user=user, now=clock.now()),
        ca_file=installation.ca_file,
    )
