"""
The life of a lease: who holds which GPUs, and what may happen next.

Rule 1: every transition a lease can make is in the table below.
Rule 2: this module reads no clock and does no I/O.
"""

from __future__ import annotations

import enum

from bidplane.api.lease import Phase


class LeaseError(Exception):
    """A lease was asked to make a transition that is not in the table."""


class Event(enum.StrEnum):
    CLAIMED = "Claimed"  # the devices are claimed for a pod
    OUTBID = "Outbid"
    MOVED = "Moved"  # to other devices, to make room for a block that was paid for
    EXPIRED = "Expired"  # its term is over and it does not renew
    UNFUNDED = "Unfunded"  # the wallet cannot cover the next epoch
    BUDGET_SPENT = "BudgetSpent"  # the budget of its work cannot
    UNCLAIMED = "Unclaimed"  # won, and not claimed in time
    INVENTORY_CHANGED = "InventoryChanged"  # won, and a device was gone before it began
    LEFT = "Left"  # nothing uses it any more, or its agent asked for release


TRANSITIONS: dict[Phase, dict[Event, Phase]] = {
    Phase.PENDING: {
        Event.CLAIMED: Phase.ACTIVE,
        Event.UNCLAIMED: Phase.RELEASED,
        Event.INVENTORY_CHANGED: Phase.RELEASED,
        Event.LEFT: Phase.RELEASED,
    },
    Phase.ACTIVE: {
        Event.OUTBID: Phase.DRAINING,
        Event.MOVED: Phase.DRAINING,
        Event.UNFUNDED: Phase.DRAINING,
        Event.BUDGET_SPENT: Phase.DRAINING,
        Event.EXPIRED: Phase.DRAINING,
        # A pod may exit on its own; nothing is left to drain.
        Event.LEFT: Phase.RELEASED,
    },
    # The end of the notice stops the rent, but only the pod's end frees the devices.
    Phase.DRAINING: {Event.LEFT: Phase.RELEASED},
    Phase.RELEASED: {},
}


def after(phase: Phase, event: Event) -> Phase:
    """The phase that follows; raises `LeaseError` when the table has no such row."""
    try:
        return TRANSITIONS[phase][event]
    except KeyError:
        raise LeaseError(f"{event} cannot happen to a lease that is {phase}") from None
