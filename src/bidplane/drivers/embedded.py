"""Planes hosted in this process, one SQLite file each."""

from __future__ import annotations

from typing import Any, Protocol

from bidplane.api.agent import PlaneLimits
from bidplane.api.crds import all_crds, for_agents
from bidplane.kube.client import KubeClient
from bidplane.machinery.planes import PlaneReference
from bidplane.runtime.identity.credentials import HOST_PLANE


def crds_for(plane: str) -> tuple[dict[str, Any], ...]:
    """Return the CRDs of a new plane: the host's has all, an agent's only what it may write."""
    return all_crds() if plane == HOST_PLANE else for_agents()


class PlaneHost(Protocol):
    """The part of `bidplane.plane.Planes` a driver needs; the two do not import each other."""

    async def create(self, name: str, uid: str | None = None) -> str: ...

    async def limit(self, name: str, limits: PlaneLimits, *, by_agent: bool = False) -> None: ...

    async def delete(self, name: str) -> None: ...

    def client(self, name: str) -> KubeClient: ...


class EmbeddedDriver:
    """A `PlaneDriver`: `ensure` takes milliseconds."""

    def __init__(self, planes: PlaneHost, base_url: str) -> None:
        self._planes = planes
        self._base_url = base_url

    async def ensure(self, name: str, uid: str, limits: PlaneLimits) -> PlaneReference:
        await self._planes.create(name, uid)
        await self._planes.limit(name, limits, by_agent=True)
        return PlaneReference(uid=uid, url=f"{self._base_url}/planes/{name}")

    async def delete(self, name: str) -> None:
        await self._planes.delete(name)

    def client(self, name: str) -> KubeClient:
        return self._planes.client(name)
