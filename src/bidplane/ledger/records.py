"""
The rows of the ledger. Times are milliseconds, money is micro-credits.

`sequence` is the number of the commit that wrote the row last.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import itertools
from typing import NamedTuple, TypeVar

import msgspec

from bidplane.api.bid import BidBeside
from bidplane.api.lease import DeviceRef, Origin, Phase
from bidplane.api.money import EARLIER_GPU_WEIGHT, GPU_WEIGHT
from bidplane.core.market.pricing.metering import MICRO_CREDIT, Meter


class AccountKind(enum.StrEnum):
    MINT = "mint"  # where credits come from and end; the only one that may be negative
    REVENUE = "revenue"  # rents
    FUND = "fund"  # a pool's: levies, and compensations on their way
    WALLET = "wallet"  # an agent's


class TransferKind(enum.StrEnum):
    REFILL = "refill"  # mint → wallet, each hour
    FUND = "fund"  # mint → wallet, by the owner's hand
    RENT = "rent"  # wallet → revenue
    LEVY = "levy"  # wallet → the pool's fund, a part of every rent
    PREEMPTION = "preemption"  # wallet of a preemptor → the pool's fund, beside its rent
    COMPENSATION = "compensation"  # the pool's fund → wallet of a displaced lease
    SEED = "seed"  # mint → a pool's fund; made by versions whose funds protected leases
    EARLY = "early"  # wallet → revenue, for a round before its time
    TRANSFER = "transfer"  # wallet → wallet, by the agent's hand
    CLOSE = "close"  # wallet → mint, what an agent leaves behind


class HoldState(enum.StrEnum):
    OPEN = "open"
    CAPTURED = "captured"  # some of it, or all, was paid
    VOIDED = "voided"  # none of it was


MINT = "mint"
REVENUE = "revenue"


def fund_of(pool: str) -> str:
    return f"fund/{pool}"


def wallet_of(uid: str) -> str:
    """
    The account of an agent, by the Agent's uid, so that a new agent of an old name has an empty
    wallet.
    """
    return f"wallet/{uid}"


@functools.lru_cache(maxsize=65_536)  # every round asks for every bid that stands
def lease_id(bid_uid: str) -> str:
    """The id of the lease that a bid wins: a bid wins at most once."""
    return hashlib.sha256(bid_uid.encode()).hexdigest()[:16]


class PoolPart(NamedTuple):
    """The part of a lease of several pools that is in one of them."""

    pool: str
    weight: int  # as the lease's
    # At the base prices of its win: its levy is each pool's by this. A GPU costs the lease the
    # same wherever it is, and an expensive pool's fund has more to cover.
    worth: int


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One row of one table."""


R = TypeVar("R", bound=Record)


class Account(Record, frozen=True, kw_only=True):
    id: str
    kind: AccountKind
    name: str = ""  # the agent's
    owner: str = ""
    posted: int = 0  # what it has
    held: int = 0  # of that, what open holds promise
    is_open: bool = True
    opened_at: int = 0
    refills: int = 0  # a wallet's: hours that were refilled
    seeded: int = 0  # a fund's: what the mint had put in, by versions that did
    sequence: int = 0
    # Since schema 5. How long what it leases takes to be up, where that is measured.
    starts: int = 0
    start_ms: int = 0  # of the last few, on average
    # Since schema 6. Of an agent, what bills are sorted by, as it was last: they outlive it.
    team: str = ""
    marks: str = ""  # its labels, as JSON; "" if nobody has said them yet

    @property
    def available(self) -> int:
        return self.posted - self.held

    @property
    def agent_uid(self) -> str:
        """The uid of the Agent that a wallet is of: the reverse of `wallet_of`."""
        return self.id.removeprefix("wallet/")


class Transfer(Record, frozen=True, kw_only=True):
    id: str  # what it is for, and so the key that keeps it from happening twice
    kind: TransferKind
    debit: str  # the account it leaves
    credit: str  # the account it reaches
    amount: int
    at: int
    lease: str = ""
    memo: str = ""
    sequence: int = 0


class Hold(Record, frozen=True, kw_only=True):
    id: str
    account: str
    lease: str
    amount: int
    state: HoldState = HoldState.OPEN
    captured: int = 0
    sequence: int = 0


class Lease(Record, frozen=True, kw_only=True):
    """The truth about a lease. The terms are those of its pool when it was won."""

    id: str
    bid_uid: str
    bid_namespace: str
    bid_name: str
    wallet: str
    agent: str
    owner: str
    pool: str
    domain: str
    devices: tuple[DeviceRef, ...]
    max_price: int
    win_price: int
    win_base: int  # the base price when it was won
    price: int  # now
    weight: int  # of its price per GPU-hour, what it pays; a whole GPU's is `gpu_weight`
    minimum: int  # paid whatever happens: a few seconds of rent, and `displacement`
    notice_seconds: int
    restart_seconds: int
    epoch_seconds: int
    phase: Phase = Phase.PENDING
    ready: bool = True
    claimed: bool = False
    waits_for: tuple[str, ...] = ()
    won_at: int = 0
    ready_at: int = 0
    active_at: int = 0
    notice_at: int = 0
    reclaim_at: int = 0
    released_at: int = 0
    reason: str = ""
    metered: int = 0  # whole micro-credits used since the last bill; below zero: paid ahead
    metered_rest: int = 0  # and what is less than one, as `Meter` counts it
    charged_until: int = 0
    settled_at: int = 0
    charged: int = 0  # all that was paid: rent, levy, and `displacement`
    compensation: int = 0
    hold: str = ""  # the open one
    holds: int = 0  # how many there were
    age: int = 0  # the rank weight its bid had gained by waiting, which it keeps
    instant: bool = False  # sold between rounds, at the posted price
    breached_at: int = 0  # when a device of it was no longer there: rent stopped
    parts: tuple[int, ...] = ()  # of a gang: how many of `devices` each block has
    levy_percent: int = 5  # of its rent, what goes to the pool's fund
    term_seconds: int = 0  # for so long nobody displaces it, and its price stands
    term_until: int = 0  # when that ends, once it has begun
    renews: bool = True  # whether it goes on after its term
    sequence: int = 0
    # Since schema 4. New columns go to the end, where a table that is brought up to date has them.
    budget: int = 0  # what all leases of its work together may cost; 0 is no limit
    work: str = ""  # what its budget is for, by a name of its agent's
    moved_from: str = ""  # it keeps devices for the holder of that lease, which moves there
    up_at: int = 0  # when what runs on it was ready
    # Since schema 7. What of it is of which pool; () where all of it is of `pool`.
    pools: tuple[PoolPart, ...] = ()
    # Since schema 8. Since when its GPUs do nothing, if that is known; 0: they are in use.
    idle_since: int = 0
    # Since schema 9. How it came about, and the namespace of its agent's plane that it is for.
    origin: Origin = Origin.BID
    plane_namespace: str = ""
    displacement: int = 0  # compensation that it paid for leases it displaced, beside its rent
    # Since schema 10. The companion devices that it needs in each machine.
    beside: tuple[BidBeside, ...] = ()
    # Since schema 12. What a whole GPU weighs: rows that were written before count in 56ths.
    gpu_weight: int = EARLIER_GPU_WEIGHT

    @property
    def pool_names(self) -> tuple[str, ...]:
        return tuple(part.pool for part in self.pools) or (self.pool,)

    @property
    def gpus_by_pool(self) -> dict[str, int]:
        """The number of GPUs in each pool, for a lease of several."""
        return {part.pool: part.weight // GPU_WEIGHT for part in self.pools}

    @property
    def gpus(self) -> int:
        """The number of whole GPUs, or of shares."""
        return len(self.devices)

    @property
    def share(self) -> str:
        return self.devices[0].share

    @property
    def came_from(self) -> Origin:
        """Its origin, also of rows that were written before schema 9."""
        return Origin.ORDER if self.bid_uid.startswith("order/") else self.origin

    @property
    def is_reservation(self) -> bool:
        """
        True for a reservation: devices kept for the next bid of an agent that was moved, leased by
        nobody yet.
        """
        return bool(self.moved_from) and not self.bid_name

    @property
    def node(self) -> str:
        return self.devices[0].node

    @property
    def blocks(self) -> tuple[tuple[DeviceRef, ...], ...]:
        """Its devices by block: one, unless it is a gang's."""
        ends = list(itertools.accumulate(self.parts or (self.gpus,)))
        return tuple(self.devices[a:b] for a, b in itertools.pairwise((0, *ends)))

    def meter(self, at: int) -> Meter:
        """The meter at `at`. Time runs from Active to the end of the notice."""
        meter = Meter(self.metered * MICRO_CREDIT + self.metered_rest, self.charged_until)
        at = min(at, self.breached_at or at)
        match self.phase:
            case Phase.ACTIVE:
                return meter.run(at, price=self.price, weight=self.weight)
            case Phase.DRAINING:
                return meter.run(min(at, self.reclaim_at), price=self.price, weight=self.weight)
            case _:
                return meter


class LotPrice(Record, frozen=True, kw_only=True):
    lot: str
    base: int
    posted: int
    devices: int
    leased: int
    used: int  # the same by weight
    unserved: int
    at: int
    sequence: int = 0
    # Since schema 12, as a lease's.
    gpu_weight: int = EARLIER_GPU_WEIGHT


def in_todays_weight(record: R) -> R:
    """Return a record with its weights as they are counted today, whenever it was written."""
    if not isinstance(record, Lease | LotPrice) or record.gpu_weight == GPU_WEIGHT:
        return record
    factor = GPU_WEIGHT // record.gpu_weight
    if isinstance(record, LotPrice):
        return msgspec.structs.replace(record, used=factor * record.used, gpu_weight=GPU_WEIGHT)
    return msgspec.structs.replace(
        record,
        weight=factor * record.weight,
        metered_rest=factor * record.metered_rest,
        pools=tuple(part._replace(weight=factor * part.weight) for part in record.pools),
        gpu_weight=GPU_WEIGHT,
    )


class Round(Record, frozen=True, kw_only=True):
    number: int
    at: int
    input: bytes  # JSON of core.market.RoundInput
    result: bytes  # JSON of core.market.RoundResult
    sequence: int = 0


class Entry(Record, frozen=True, kw_only=True):
    """One commit: everything it wrote, chained to the commit before."""

    sequence: int
    at: int
    payload: bytes  # JSON: [[table, [value, …]], …]
    hash: bytes
