"""
An agent's scheduler, which decides and does nothing: `plan` turns a snapshot of the plane into
operations, and `controllers/scheduler` carries them out. Pure.

    observed     the snapshot of a plane, and questions about it
    operations   the operations that can be planned
    planning     from one to the other, with the rules
    offers       the price that a pod offers now
    bids         the Bids of pods and gangs
    groups       which pods are a gang
    gangs        pods that share a bid
    groupstatus  the status of PodGroups
    claimants    pods with ResourceClaims
    podclaims    allocation of those claims inside the agent's leases
    bindings     which bindings fit their node, and nodes for pods without GPUs
"""

from bidplane.api.objects import is_deleted, phase_of
from bidplane.core.scheduling.groups import sources_named
from bidplane.core.scheduling.observed import (
    PlaneSnapshot,
    bid_name,
    gang_bid_name,
    is_live_on,
    is_pending,
    wants_gpus,
)
from bidplane.core.scheduling.offers import is_paced
from bidplane.core.scheduling.operations import (
    BindPod,
    CreateBid,
    DeleteBid,
    Explain,
    Operation,
    PriceBid,
    ReleaseLease,
    TellGroup,
)
from bidplane.core.scheduling.planning import plan

__all__ = [
    "BindPod",
    "CreateBid",
    "DeleteBid",
    "Explain",
    "Operation",
    "PlaneSnapshot",
    "PriceBid",
    "ReleaseLease",
    "TellGroup",
    "bid_name",
    "gang_bid_name",
    "is_deleted",
    "is_live_on",
    "is_paced",
    "is_pending",
    "phase_of",
    "plan",
    "sources_named",
    "wants_gpus",
]
