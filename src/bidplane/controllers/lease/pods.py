"""The pods of a lease: those in its agent's plane, and those on the host that use its devices."""

from __future__ import annotations

from bidplane.api.views import Pod
from bidplane.core.hosting.translation import lease_label
from bidplane.core.scheduling import is_live_on
from bidplane.machinery.planes import PlaneCache


class LeasePods:
    """Finds the pods of a lease that have not ended."""

    def __init__(self, host: PlaneCache) -> None:
        self._by_lease = host.pods.index(lease_label)

    def in_plane(self, plane: PlaneCache, lease: str) -> list[Pod]:
        """Return the plane's pods that run on the lease."""
        return [pod for pod in plane.pods.items() if is_live_on(pod, lease)]

    def on_host(self, lease: str) -> list[Pod]:
        """Return the host pods that use the devices, even if their originals were deleted."""
        return [pod for pod in self._by_lease[lease] if not pod.has_ended]
