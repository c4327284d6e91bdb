"""
Endpoints: copied to the host, so that routes are known while a plane sleeps, and their targets
scaled as the traffic asks. The only writer of the replicas of what may sleep. `keda` makes
Endpoints of the objects of KEDA's HTTP add-on.
"""

from bidplane.controllers.endpoint.controller import EndpointController
from bidplane.controllers.endpoint.keda import KINDS as KEDA
from bidplane.controllers.endpoint.keda import KedaController

__all__ = ["KEDA", "EndpointController", "KedaController"]
