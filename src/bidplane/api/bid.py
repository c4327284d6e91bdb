"""
`Bid`: one standing ask for GPUs.

It lives in the agent's plane; the syncer carries it to the agent's namespace on the
host, where the exchange reads it, and carries its status back. A bid stands, and takes
part in every round, until it wins, is refused, or is deleted.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Annotated

import msgspec

from bidplane.api.pool import MOST_TERM_SECONDS
from bidplane.api.shape import MOST_GPUS, Choice


class BidPhase(enum.StrEnum):
    WAITING = "Waiting"  # took part in a round and did not win; stands
    WON = "Won"  # `status.lease` names what it won
    ENDED = "Ended"  # what it won was released; a bid wins once
    REFUSED = "Refused"  # cannot win as it is; `status.message` says what to change


class BidReason(enum.StrEnum):
    """The reason for a bid's phase. It reaches the user unchanged, as a pod's reason."""

    WON = "Won"
    RELEASED = "Released"  # the lease it won is over
    OUTBID = "Outbid"  # others value the GPUs more; priceToWin says what would have won
    BELOW_RESERVE = "BelowReserve"  # below the pool's base price
    NO_FREE_BLOCK = "NoFreeBlock"  # no price wins now: what is in the way cannot be reclaimed
    WALLET_TOO_SMALL = "WalletTooSmall"
    BUDGET_SPENT = "BudgetSpent"  # what is left of its budget does not cover an epoch at its price
    LARGER_THAN_EVERY_DOMAIN = "LargerThanEveryDomain"
    NO_MACHINE_HAS_ALL = "NoMachineHasAll"  # of what must be in one machine
    NO_MACHINE_FITS = "NoMachineFits"  # what its pod requests, or the node it asks for
    NO_SUCH_DEVICE = "NoSuchDevice"  # no machine with such GPUs has what must be beside them
    NO_SUCH_CLASS = "NoSuchClass"  # the host has no DeviceClass for it
    DEVICE_TAKEN = "DeviceTaken"  # such machines have it, and others have it all now
    NO_SUCH_POOL = "NoSuchPool"
    SHAPE_NOT_SOLD = "ShapeNotSold"  # the pool does not divide its GPUs like that
    SELECTOR_TOO_FINE = "SelectorTooFine"  # it would split the pool into too many lots
    SELECTOR_TOO_COSTLY = "SelectorTooCostly"  # evaluating it takes more CPU time than it may
    SELECTOR_PENDING = "SelectorPending"  # it is being evaluated, and stands
    TOO_MANY_SELECTORS = "TooManySelectors"  # its agent's bids have more than one agent may
    SELECTS_NOTHING = "SelectsNothing"  # no device of the pool is as its selector says
    CONSTRAINT_NOT_SOLD = "ConstraintNotSold"  # a constraint that a block does not keep
    NO_DEVICES = "NoDevices"  # nothing is for sale yet
    BAD_PRICE = "BadPrice"
    BAD_BID = "BadBid"  # another field of it cannot be read
    DEADLINE_PASSED = "DeadlinePassed"
    TERM_BOUND = "TermBound"  # more of the pool, or longer, than may be under terms; it says when
    TOO_MANY_BIDS = "TooManyBids"  # its owner has as many standing bids as one may
    QUARANTINED = "Quarantined"  # its agent's rows make rounds fail; the message says how


MOST_BESIDE = 8  # kinds of devices
MOST_EACH = 32  # of each kind, and selectors: as many as a ResourceClaim may have


class BidBeside(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Devices that nobody sells, such as NICs, which must be free in the machine."""

    device_class: str  # of the host, where its owner says which devices may be had so
    count: Annotated[int, msgspec.Meta(ge=1, le=MOST_EACH)] = 1
    # CEL over `device`, all of them true.
    selectors: Annotated[tuple[str, ...], msgspec.Meta(max_length=MOST_EACH)] = ()


class NodeRequirement(msgspec.Struct, frozen=True, kw_only=True):
    """A requirement of a node, as in a pod's node affinity."""

    key: str
    operator: str
    values: list[str] = []


class NodeTerm(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Requirements of a node, all of them."""

    match_expressions: list[NodeRequirement] = []
    match_fields: list[NodeRequirement] = []


class BidChoice(Choice, frozen=True, kw_only=True, rename="camel"):
    """An alternative that would do instead."""

    # Credits per GPU-hour. "" is its agent's maxPrice or, if that has none, the agent's priority
    # times the list price of the pool, of each pool that it may enter.
    max_price: str = ""


class BidSpec(BidChoice, frozen=True, kw_only=True, rename="camel"):
    # Without a price, in each machine: a bid is sold only where these are free. With oneNode.
    beside: Annotated[tuple[BidBeside, ...], msgspec.Meta(max_length=MOST_BESIDE)] = ()
    # CPU, memory and disk that its pod requests: its GPUs' share of their machine must have it.
    requests: dict[str, str] = msgspec.field(default_factory=dict)
    # Its machine must match one of these, if there are any.
    node_selector_terms: Annotated[tuple[NodeTerm, ...], msgspec.Meta(max_length=32)] = ()
    # Either this or one of these, whichever gains most; the earlier of equals.
    otherwise: Annotated[tuple[BidChoice, ...], msgspec.Meta(max_length=7)] = ()
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


def shape_problems(spec: BidSpec) -> Iterator[str]:
    """Yield a sentence for each part of a bid that no pool could sell."""
    choices: list[tuple[str, BidChoice]] = [("spec", spec)]
    choices += [(f"spec.otherwise[{n}]", choice) for n, choice in enumerate(spec.otherwise)]
    for field, choice in choices:
        yield from choice.problems(field)
        if spec.beside and not choice.one_node:
            yield f"{field}: beside lists devices of the bid's machine: set oneNode, too"
        if (total := choice.asked) > MOST_GPUS:
            yield f"{field}: it is for {total} GPUs; the most is {MOST_GPUS}"


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
