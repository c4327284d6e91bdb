"""
`Bid`: one standing ask for GPUs.

It lives in the agent's plane; the syncer carries it to the agent's namespace on the
host, where the exchange reads it, and carries its status back. A bid stands, and takes
part in every round, until it wins, is refused, or is deleted.
"""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec


class BidPhase(enum.StrEnum):
    WAITING = "Waiting"  # took part in a round and did not win; stands
    WON = "Won"  # `status.lease` names what it won
    ENDED = "Ended"  # what it won was released; a bid wins once
    REFUSED = "Refused"  # cannot win as it is; `status.message` says what to change


class BidReason(enum.StrEnum):
    """Why a bid is where it is. These reach the user unchanged, as a pod's reason."""

    WON = "Won"
    RELEASED = "Released"  # the lease it won is over
    OUTBID = "Outbid"  # others value the GPUs more; priceToWin says what would have won
    BELOW_RESERVE = "BelowReserve"  # below the pool's base price
    NO_FREE_BLOCK = "NoFreeBlock"  # no price wins now: what is in the way cannot be reclaimed
    WALLET_TOO_SMALL = "WalletTooSmall"
    BUDGET_SPENT = "BudgetSpent"  # what is left of its budget does not cover an epoch at its price
    LARGER_THAN_EVERY_DOMAIN = "LargerThanEveryDomain"
    NO_MACHINE_HAS_ALL = "NoMachineHasAll"  # of what must be in one machine
    NO_SUCH_DEVICE = "NoSuchDevice"  # no machine with such GPUs has what must be beside them
    NO_SUCH_CLASS = "NoSuchClass"  # the host has no DeviceClass for it
    DEVICE_TAKEN = "DeviceTaken"  # such machines have it, and others have it all now
    NO_SUCH_POOL = "NoSuchPool"
    SHAPE_NOT_SOLD = "ShapeNotSold"  # the pool does not divide its GPUs like that
    SELECTOR_TOO_FINE = "SelectorTooFine"  # it would split the pool into too many lots
    SELECTS_NOTHING = "SelectsNothing"  # no device of the pool is as its selector says
    CONSTRAINT_NOT_SOLD = "ConstraintNotSold"  # a constraint that a block does not keep
    NO_DEVICES = "NoDevices"  # nothing is for sale yet
    BAD_PRICE = "BadPrice"
    BAD_BID = "BadBid"  # another field of it cannot be read
    DEADLINE_PASSED = "DeadlinePassed"
    TOO_MANY_BIDS = "TooManyBids"  # its owner has as many standing bids as one may


MOST_GPUS = 1024
MOST_BLOCKS = 128
MOST_BESIDE = 8  # kinds of devices
MOST_EACH = 32  # of each kind, and selectors: as many as a ResourceClaim may have
MOST_TERM_SECONDS = 30 * 86_400


class BidNeed(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What is needed beside the rest: all of it or none, at the same price per GPU-hour."""

    gpus: Annotated[int, msgspec.Meta(ge=1, le=MOST_GPUS)]
    pool: str = ""
    blocks: Annotated[int, msgspec.Meta(ge=1, le=MOST_BLOCKS)] = 1
    spread: bool = False
    selector: str = ""
    match_attribute: Annotated[list[str], msgspec.Meta(max_length=8)] = []


class BidBeside(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Devices that nobody sells, such as NICs, which must be free in the machine."""

    device_class: str  # of the host, where its owner says which devices may be had so
    count: Annotated[int, msgspec.Meta(ge=1, le=MOST_EACH)] = 1
    # CEL over `device`, all of them true.
    selectors: Annotated[tuple[str, ...], msgspec.Meta(max_length=MOST_EACH)] = ()


class BidChoice(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What would do instead."""

    gpus: Annotated[int, msgspec.Meta(ge=1, le=MOST_GPUS)]
    max_price: str
    pool: str = ""
    blocks: Annotated[int, msgspec.Meta(ge=1, le=MOST_BLOCKS)] = 1
    spread: bool = False
    whole_domain: bool = False
    share: str = ""
    selector: str = ""
    match_attribute: Annotated[list[str], msgspec.Meta(max_length=8)] = []
    distinct_attribute: str = ""
    also: Annotated[list[BidNeed], msgspec.Meta(max_length=7)] = []
    one_node: bool = False


class BidSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    gpus: Annotated[int, msgspec.Meta(ge=1, le=MOST_GPUS)]
    max_price: str  # credits per GPU-hour
    pool: str = ""  # "" lets the exchange choose
    # A gang: so many blocks of `gpus`, each in one link domain, all of them or none.
    blocks: Annotated[int, msgspec.Meta(ge=1, le=MOST_BLOCKS)] = 1
    spread: bool = False  # the GPUs need not be in one link domain
    # All GPUs of one link domain, however many those are; `gpus` is the least.
    whole_domain: bool = False
    share: str = ""  # a part of one GPU instead: "1/2", "1/4", "1/8", or a MIG profile
    selector: str = ""  # CEL over `device`, as in a DRA request: which devices will do
    # Attributes in which all devices of a block must be equal.
    match_attribute: Annotated[list[str], msgspec.Meta(max_length=8)] = []
    distinct_attribute: str = ""  # one in which all must differ; no pool sells that
    # And these, of the same pool or others: one bid, one price, one lease, all or none.
    also: Annotated[list[BidNeed], msgspec.Meta(max_length=7)] = []
    # All of it in one machine, as a pod needs it; `blocks` is then how many such sets.
    one_node: bool = False
    # Without a price, in each machine: a bid is sold only where these are free. With oneNode.
    beside: Annotated[list[BidBeside], msgspec.Meta(max_length=MOST_BESIDE)] = []
    # Either this or one of these, whichever gains most; the earlier of equals.
    otherwise: Annotated[list[BidChoice], msgspec.Meta(max_length=7)] = []
    deadline: str = ""  # RFC 3339: not sold after it
    # Nobody displaces what it wins for so long, at one price; that costs a quarter more.
    term_seconds: Annotated[int, msgspec.Meta(ge=0, le=MOST_TERM_SECONDS)] = 0
    renew: bool = True  # after its term the lease goes on, contestable; else it ends with it
    urgent: bool = False  # asks for a round at once, for a fee
    # One GPU, or a part of one, is bought from a pool's float as soon as the instant price is
    # within `maxPrice`; until then the bid takes part in rounds as any other.
    instant: bool = False
    # The most, in credits, that all leases of one work may cost; "" is no limit. Bids of one
    # agent with the same `work` share it; one that names none has it for itself.
    budget: str = ""
    work: Annotated[str, msgspec.Meta(max_length=253)] = ""


class BidStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    phase: BidPhase
    reason: BidReason
    message: str
    pool: str = ""  # where it was routed
    price_to_win: str = ""  # credits per GPU-hour that would have won the last round
    wallet: str = ""  # what the agent had free, to three digits: how far from winning it is
    round: int = 0
    lease: str = ""
    gpus_sold: int = 0  # the block's size, where the ask was rounded up to one
    share_sold: str = ""  # the part of a GPU, if it is one
    spent: str = ""  # of its budget, by all leases of its work that were billed
    ran_seconds: int = 0  # how long these ran
    withheld: str = ""  # where there is no room: what of the pool nobody new gets now, and why
