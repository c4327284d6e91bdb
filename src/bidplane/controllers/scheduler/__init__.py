"""
The scheduler of every agent: turns pods into bids, and binds them to the leases that they won.

    controller    which plane to plan when, and the snapshot that is planned with
    execution     carries out the operations of `core/scheduling`
    explanations  tells a pod why it waits

It writes only in planes: Bids of pods, bindings, the pods' condition `PodScheduled`, ResourceClaims
and PodGroups; it deletes mirrors of leases that nobody uses.
"""

from bidplane.controllers.scheduler.controller import SchedulerController

__all__ = ["SchedulerController"]
