"""
The embedded API server: many planes in one process, each a Kubernetes of its own.

`planes` opens them, `plane` is one: a store (`storage/`), the resources it serves (`registry`), and
who may do what (`identity/`). A request comes over HTTP (`http/`) or from this process (`local`),
waits its turn (`fairness`, `turns`), and is one of the `verbs/`, after `admission/`. `housekeeping`
collects garbage, `life` says how planes sleep and end. Rules of Kubernetes are `wire`'s; rules of
the market are `core`'s.
"""

from bidplane.plane.call import Admit
from bidplane.plane.http.hosting import PodStreams
from bidplane.plane.planes import Planes

__all__ = ["Admit", "Planes", "PodStreams"]
