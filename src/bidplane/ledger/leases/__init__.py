"""
The life of a lease in the ledger, with the money that moves at each event: `winning` (an award
becomes a lease), `use`, `settling` (rent), `ending`; `billing` has the bills and holds that they
share. Touches the ledger's commit and the pure rules of `core`, nothing else.
"""

from __future__ import annotations

from bidplane.ledger.leases.billing import Terms, hold_for, shared_out, terms_of
from bidplane.ledger.leases.ending import breach, mend, notice, release, void
from bidplane.ledger.leases.settling import (
    ARREARS_SECONDS,
    needs_settling,
    raise_bid,
    reprice,
    settle,
)
from bidplane.ledger.leases.use import (
    CLAIM_MILLISECONDS,
    claim,
    is_expired,
    is_protected,
    is_unclaimed,
    note_idle,
    note_up,
)
from bidplane.ledger.leases.winning import (
    Award,
    Buyer,
    lease_reserved_devices,
    reserve_devices,
    win,
)

__all__ = [
    "ARREARS_SECONDS",
    "CLAIM_MILLISECONDS",
    "Award",
    "Buyer",
    "Terms",
    "breach",
    "claim",
    "hold_for",
    "is_expired",
    "is_protected",
    "is_unclaimed",
    "lease_reserved_devices",
    "mend",
    "needs_settling",
    "note_idle",
    "note_up",
    "notice",
    "raise_bid",
    "release",
    "reprice",
    "reserve_devices",
    "settle",
    "shared_out",
    "terms_of",
    "void",
    "win",
]
