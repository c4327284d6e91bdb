"""
The beginning of a lease: an award becomes a row of the ledger with its hold.

An `Award` is a won ask on its way into the ledger. A round, the float and a reservation each make
one, and `win` is the only place where a lease begins.
"""

from __future__ import annotations

import msgspec

from bidplane.api.bid import BidBeside
from bidplane.api.lease import DeviceRef, Origin
from bidplane.api.money import GPU_WEIGHT, rent
from bidplane.api.shape import fields_of
from bidplane.core.leases.lifecycle import LeaseEvent
from bidplane.core.market.clearing import preemption
from bidplane.core.market.pricing.metering import MINIMUM_SECONDS
from bidplane.ledger.commit import BrokenPromise, Commit
from bidplane.ledger.leases.billing import (
    Terms,
    hold_for,
    lease_by_id,
    open_hold,
    terms_of,
    transfer_id,
)
from bidplane.ledger.leases.ending import release
from bidplane.ledger.records import Lease, PoolPart, TransferKind, fund_of, lease_id


class Buyer(msgspec.Struct, frozen=True, kw_only=True):
    """The bid or order that wins, as it is named on the host, and the wallet that pays for it."""

    bid_uid: str
    bid_namespace: str
    bid_name: str
    wallet: str
    agent: str
    owner: str
    plane_namespace: str = ""  # of its agent's plane, where it was written
    origin: Origin = Origin.BID
    beside: tuple[BidBeside, ...] = ()  # companion devices that it needs in each machine
    term_seconds: int = 0  # for so long nobody displaces it, at the price it was won at
    renews: bool = True  # whether it goes on after its term
    budget: int = 0  # the most that all leases of its work may cost; 0 is no limit
    work: str = ""


class Award(msgspec.Struct, frozen=True, kw_only=True):
    """A won ask: who gets which devices, at what price, on what terms."""

    buyer: Buyer
    terms: Terms
    pool: str
    domain: str
    devices: tuple[DeviceRef, ...]
    max_price: int
    price: int
    base: int  # the base price when it was won
    owed: int = 0  # to the leases that it displaces
    waits_for: tuple[str, ...] = ()  # leases that still use some of the devices
    weight: int = 0  # of its price per GPU-hour, what it pays; 0: of whole devices
    parts: tuple[int, ...] = ()  # of a gang: how many of `devices` each block has
    age: int = 0  # the rank weight that its bid had gained by waiting
    instant: bool = False  # sold between rounds, at the posted price
    levy_percent: int = preemption.LEVY_PERCENT
    moved_from: str = ""
    pools: tuple[PoolPart, ...] = ()  # its parts by pool, if it has several
    # By pool, the part of `owed` that its fund gets, if not its own pool's gets all.
    funds: dict[str, int] = {}


# What a lease has from its award by the same name.
_FROM_AWARD = tuple(set(Award.__struct_fields__) & set(Lease.__struct_fields__))


def win(commit: Commit, award: Award) -> Lease:
    """
    Add a new lease and open its hold. It is ready once all that it waits for have left.

    What it owes to those it displaces is paid at once, beside its rent, into the fund that
    compensates them in the same commit. Were it rent paid ahead, two who take turns would pay
    each other and use the GPUs for nothing.
    """
    buyer, terms = award.buyer, award.terms
    award = msgspec.structs.replace(award, weight=award.weight or GPU_WEIGHT * len(award.devices))
    lease = Lease(
        id=lease_id(buyer.bid_uid),
        **fields_of(Buyer, buyer),
        **terms._asdict(),
        **{name: getattr(award, name) for name in _FROM_AWARD},
        win_price=award.price,
        win_base=award.base,
        gpu_weight=GPU_WEIGHT,
        minimum=award.owed + rent(award.price, award.weight, MINIMUM_SECONDS),
        charged=award.owed,
        displacement=award.owed,
        ready=not award.waits_for,
        won_at=commit.at,
        ready_at=0 if award.waits_for else commit.at,
    )
    if award.funds and sum(award.funds.values()) != award.owed:
        raise BrokenPromise(
            f"lease {lease.id}: the funds get {award.funds}, and {award.owed} is owed"
        )
    for name, amount in award.funds.items() or ((award.pool, award.owed),):
        if amount:
            commit.transfer(
                transfer_id(f"preemption/{lease.id}", name, award.funds),
                TransferKind.PREEMPTION,
                debit=lease.wallet,
                credit=fund_of(name),
                amount=amount,
                lease=lease.id,
            )
    needed = hold_for(award.max_price, award.weight, terms, buyer.term_seconds)
    lease = open_hold(commit, lease, needed)
    commit.add_lease(lease)
    return lease


def reserve_devices(
    commit: Commit, id: str, *, domain: str, devices: tuple[DeviceRef, ...]
) -> Lease:
    """
    Reserve devices for the holder of a lease that moves, out of the market until its next bid takes
    them, or until a minute after it has left. Nothing is held and nothing is charged for it.
    """
    before = lease_by_id(commit, id)
    uid = f"move/{id}"
    reservation = Lease(
        id=lease_id(uid),
        bid_uid=uid,
        bid_namespace=before.bid_namespace,
        bid_name="",
        wallet=before.wallet,
        agent=before.agent,
        owner=before.owner,
        **terms_of(before)._asdict(),
        pool=before.pool,
        domain=domain,
        devices=devices,
        max_price=before.max_price,
        win_price=before.price,
        win_base=before.win_base,
        price=before.price,
        weight=before.weight,
        gpu_weight=GPU_WEIGHT,
        minimum=0,
        ready=False,
        waits_for=(id,),
        age=before.age,
        won_at=commit.at,
        moved_from=id,
    )
    reservation = open_hold(commit, reservation, 0)
    commit.add_lease(reservation)
    return reservation


def lease_reserved_devices(
    commit: Commit, id: str, buyer: Buyer, terms: Terms, *, max_price: int, levy_percent: int
) -> Lease:
    """Lease the reserved devices to the buyer, at the price it had where it was moved from."""
    reservation = release(commit, id, LeaseEvent.LEFT)
    return win(
        commit,
        Award(
            buyer=buyer,
            terms=terms,
            pool=reservation.pool,
            domain=reservation.domain,
            devices=reservation.devices,
            max_price=max_price,
            price=min(reservation.price, max_price),
            base=reservation.win_base,
            weight=reservation.weight,
            age=reservation.age,
            levy_percent=levy_percent,
            moved_from=reservation.moved_from,
        ),
    )
