"""The Bid by which an Endpoint keeps its lease while it has no pod, and what it holds."""

from __future__ import annotations

from contextlib import suppress

from bidplane.api.endpoint import EndpointStatus
from bidplane.api.idling.ladder import HoldingStatus
from bidplane.api.kinds import BID
from bidplane.api.reading import Bid, Endpoint
from bidplane.api.views import KubeObject
from bidplane.core.activation.lifecycle import Observed
from bidplane.core.hosting import translation
from bidplane.core.idling import keeping
from bidplane.core.idling.keeping import BidChange
from bidplane.errors import AlreadyExists, NotFound
from bidplane.machinery.planes import PlaneCache


class LeaseKeeper:
    """Looks at the leases of Endpoints, and at the Bids that keep them."""

    def __init__(self, host: PlaneCache) -> None:
        self._host = host

    def look(
        self, plane: PlaneCache, original: KubeObject, endpoint: Endpoint, observed: Observed
    ) -> tuple[Bid | None, BidChange, HoldingStatus]:
        """Return an Endpoint's Bid, the change that it needs, and the leases that it holds."""
        name = keeping.bid_name(original.name)
        bid = plane.bids.get(original.namespace, name)
        demand = (endpoint.status or EndpointStatus()).demand
        change = BidChange()
        if observed.deployment is not None:
            change = keeping.step(endpoint.spec, demand, original.json, observed.deployment, bid)
        holding = keeping.holding(
            self._host.leases.in_namespace(endpoint.namespace),
            [pod.node_name for pod in observed.pods if pod.node_name and not pod.has_ended],
            translation.host_name(original.namespace, name),
            change.problem,
        )
        return bid, change, holding


async def change_bid(plane: PlaneCache, bid: Bid | None, change: BidChange) -> None:
    """Create or delete an Endpoint's Bid."""
    if change.delete and bid is not None:
        with suppress(NotFound):
            await plane.client.delete(BID, bid.name, bid.namespace, uid=bid.uid)
    elif change.create is not None:
        with suppress(AlreadyExists):
            namespace = change.create["metadata"]["namespace"]
            await plane.client.create(BID, change.create, namespace)
