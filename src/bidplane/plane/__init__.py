"""The embedded API server: many planes in one process, each a Kubernetes of its own."""

from bidplane.plane.call import Admit
from bidplane.plane.planes import Planes, PodLogs

__all__ = ["Admit", "Planes", "PodLogs"]
