"""
Endpoints: copied to the host, so that routes are known while a plane sleeps, and their targets
scaled as the traffic asks. The only writer of the replicas of what may sleep.
"""

from bidplane.controllers.endpoint.controller import EndpointController

__all__ = ["EndpointController"]
