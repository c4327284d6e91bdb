"""
`GPULease`: what was won. A projection of the ledger; the ledger is the truth.

Written by the exchange into the agent's namespace on the host, and mirrored into the
agent's plane. Two things travel the other way: the condition `Claimed`, set on the host
object once its devices are claimed for a pod (charging starts), and deletion, which
asks for early release.
"""

from __future__ import annotations

import enum

import msgspec

from bidplane.api.bid import BidBeside
from bidplane.api.money import EARLIER_GPU_WEIGHT
from bidplane.api.shape import part_units

CLAIMED = "Claimed"
IN_USE = "InUse"  # False: no pod has been on it since; nothing is said of one a program holds
HELD = "Held"  # reason of `Claimed`: a program holds it, not a pod
LINK_DEGRADED = "LinkDegraded"  # condition: a link of its devices is less than it was
VOID = "Void"  # what was won had to be beside other devices, which are taken: nothing is owed
UP = "Up"  # what runs on it was ready: so long did its start take
DEVICE_READY = "Ready"  # condition of a device in a ResourceClaim: by the node that prepared it
FINALIZER = "bidplane.dev/exchange"  # keeps the object until the ledger has released it


class Phase(enum.StrEnum):
    """The phases of a lease's life; `core/leases/lifecycle` has the table of transitions."""

    PENDING = "Pending"  # won, credits held, devices not yet claimed
    ACTIVE = "Active"  # claimed for a pod; time is charged
    DRAINING = "Draining"  # outbid or out of money; the pod has its notice
    RELEASED = "Released"


class DeviceRef(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One device of a ResourceSlice, by the four names that make it unique."""

    node: str
    driver: str
    pool: str  # the ResourceSlice's pool, not a `Pool`
    name: str
    share: str = ""  # of the device, if not all of it: "0.3", or a MIG profile
    # Of a MIG instance, its memory slices, the first of which is its start. Of a part that was won
    # when parts were eighths ("1/2"), which of the eight it has.
    slots: tuple[int, ...] = ()
    # Of a part, which of the device's units it has (`shape.PART_UNITS`): from and to, in pairs.
    units: tuple[int, ...] = ()

    @property
    def whole(self) -> DeviceRef:
        """The whole device: this one, or the one that this is a part of."""
        if not self.share:
            return self
        return msgspec.structs.replace(self, share="", slots=(), units=())

    @property
    def is_part(self) -> bool:
        """True for a part without isolation; False for a MIG instance and a whole device."""
        return part_units(self.share) is not None


class Origin(enum.StrEnum):
    """The ways in which a lease is bought."""

    BID = "bid"
    ORDER = "order"  # bought over HTTP, without a Bid


class BidReference(msgspec.Struct, frozen=True, kw_only=True):
    """The bid as it is named on the host; the plane's names are in its annotations."""

    namespace: str
    name: str
    uid: str


class LeaseSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    agent: str
    bid: BidReference
    pool: str
    node: str
    devices: list[DeviceRef]
    max_price: str
    # Of a gang, one object each: which this is, counted from 0, and how many there are.
    part: int = 0
    parts: int = 1
    weight: int = 0  # of its price per GPU-hour, what it pays; a whole GPU's is `gpu_weight`
    gpu_weight: int = EARLIER_GPU_WEIGHT
    origin: Origin = Origin.BID
    # In the agent's plane, the namespace of the Bid or pod it was won for; "" if it is not known.
    plane_namespace: str = ""
    # Companion devices, without a price, that it needs in its machine. Leases that an earlier
    # version won do not say.
    beside: tuple[BidBeside, ...] = ()
    measured: bool = False  # how long its pod takes to be ready is to be said: condition `Up`


class LeaseStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    phase: Phase
    ready: bool = True  # false while what it displaced still drains
    price: str = ""  # credits per GPU-hour now
    won_at: str = ""
    active_at: str = ""
    notice_at: str = ""
    reclaim_at: str = ""  # end of the notice
    protected_until: str = ""  # end of its term: until then nobody displaces it
    released_at: str = ""
    reason: str = ""  # why it drains or was released
    charged: str = ""
    compensation: str = ""
    idle_since: str = ""  # its GPUs do nothing since: it has no incumbent's weight
    breached_at: str = ""  # a device of it, or its node, is gone: no rent since, release is free
    message: str = ""  # what there is to say of that
    sequence: int = 0  # the ledger's, of the last change; projections never go back
