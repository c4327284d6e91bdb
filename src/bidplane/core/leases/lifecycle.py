"""
The life cycle of a lease: its phases, and the events that lead from one to the next.

Rule 1: every transition a lease can make is in the table below. Rule 2: this module reads no clock
and does no I/O.
"""

from __future__ import annotations

import enum

from bidplane.api.lease import Phase


class LeaseError(Exception):
    """A lease was asked to make a transition that is not in the table."""


class LeaseEvent(enum.StrEnum):
    """An event in the life of a lease."""

    CLAIMED = "Claimed"  # the devices are claimed for a pod
    OUTBID = "Outbid"
    MOVED = "Moved"  # to other devices, to make room for a block that was paid for
    EXPIRED = "Expired"  # its term is over, and it is not renewed
    UNFUNDED = "Unfunded"  # the wallet cannot cover the next epoch
    BUDGET_SPENT = "BudgetSpent"  # the budget of its work cannot cover the next epoch
    UNCLAIMED = "Unclaimed"  # won, and not claimed in time
    INVENTORY_CHANGED = "InventoryChanged"  # won, and a device was gone before it began
    LEFT = "Left"  # nothing uses it any more, or its agent released it


TRANSITIONS: dict[Phase, dict[LeaseEvent, Phase]] = {
    Phase.PENDING: {
        LeaseEvent.CLAIMED: Phase.ACTIVE,
        LeaseEvent.OUTBID: Phase.RELEASED,  # nothing runs on it yet, so nothing is drained
        LeaseEvent.UNCLAIMED: Phase.RELEASED,
        LeaseEvent.INVENTORY_CHANGED: Phase.RELEASED,
        LeaseEvent.LEFT: Phase.RELEASED,
    },
    Phase.ACTIVE: {
        LeaseEvent.OUTBID: Phase.DRAINING,
        LeaseEvent.MOVED: Phase.DRAINING,
        LeaseEvent.UNFUNDED: Phase.DRAINING,
        LeaseEvent.BUDGET_SPENT: Phase.DRAINING,
        LeaseEvent.EXPIRED: Phase.DRAINING,
        # A pod may exit on its own; nothing is left to drain.
        LeaseEvent.LEFT: Phase.RELEASED,
    },
    # The end of the notice stops the rent, but only the pod's end frees the devices.
    Phase.DRAINING: {LeaseEvent.LEFT: Phase.RELEASED},
    Phase.RELEASED: {},
}


def after(phase: Phase, event: LeaseEvent) -> Phase:
    """Return the phase after an event; raises `LeaseError` when the table has no such row."""
    try:
        return TRANSITIONS[phase][event]
    except KeyError:
        raise LeaseError(f"{event} cannot happen to a lease that is {phase}") from None
