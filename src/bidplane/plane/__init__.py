"""The embedded API server: many planes in one process, each a Kubernetes of its own."""

from bidplane.plane.call import Admit
from bidplane.plane.http.hosting import PodStreams
from bidplane.plane.planes import Planes

__all__ = ["Admit", "Planes", "PodStreams"]
