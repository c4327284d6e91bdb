"""
An agent's scheduler, which decides and does nothing; `planning` has its rules.

    seen         what it sees of its plane, and what it asks about it
    operations   what it can want done
    planning     from one to the other
    offers       what a pod bids now
    bids         the Bid it becomes
    groups       which pods are a gang
    gangs        pods that share a bid
    groupstatus  what a PodGroup is told of its pods
    claimants    pods with ResourceClaims
"""

from bidplane.core.scheduling.groups import sources_named
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
from bidplane.core.scheduling.seen import (
    Snapshot,
    bid_name,
    gang_bid_name,
    is_deleted,
    is_live_on,
    is_pending,
    phase_of,
)

__all__ = [
    "BindPod",
    "CreateBid",
    "DeleteBid",
    "Explain",
    "Operation",
    "PriceBid",
    "ReleaseLease",
    "Snapshot",
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
]
