"""
What happens to a lease, with the money that moves when it does.

Rent is metered in the lease's row and billed at settlement points: each epoch, at
notice, at release. A bill captures the lease's open hold, so it cannot exceed it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec

from bidplane.api.lease import Device, Phase
from bidplane.api.money import GPU_WEIGHT, rent
from bidplane.core.lease import Event, after
from bidplane.core.market import preemption
from bidplane.core.market.metering import (
    MICRO_CREDIT,
    MINIMUM_SECONDS,
    Meter,
    cover_seconds,
    reserve_seconds,
)
from bidplane.ledger import budgets
from bidplane.ledger.commit import BrokenPromise, Commit
from bidplane.ledger.records import (
    REVENUE,
    Hold,
    Lease,
    PoolPart,
    TransferKind,
    fund_of,
    lease_id,
)

CLAIM_MILLISECONDS = 60_000  # a lease that is ready and not claimed by then is released


class Terms(NamedTuple):
    """A pool's, as they bind a lease from its win on."""

    notice_seconds: int
    restart_seconds: int
    epoch_seconds: int


class Term(NamedTuple):
    """For how long a lease is protected, at the price it was won at."""

    seconds: int = 0
    renews: bool = True


class Budget(NamedTuple):
    """What all leases of a work may cost; see `budgets`."""

    amount: int = 0  # 0 is no limit
    work: str = ""


class Winner(NamedTuple):
    """Who won, by the bid as it is named on the host."""

    bid_uid: str
    bid_namespace: str
    bid_name: str
    wallet: str
    agent: str
    owner: str


_NO_TERM = Term()
_ITS_OWN: Mapping[str, int] = {}  # the fund of its own pool
_NO_BUDGET = Budget()


def terms_of(lease: Lease) -> Terms:
    return Terms(lease.notice_seconds, lease.restart_seconds, lease.epoch_seconds)


def hold_for(price: int, weight: int, terms: Terms, term_seconds: int = 0) -> int:
    """
    What must be held for a bid to take part, and kept held while its lease runs: an epoch
    at its highest price, or all that is left of its term.
    """
    cover = cover_seconds(terms.epoch_seconds, terms.notice_seconds)
    return rent(price, weight, max(cover, term_seconds))


def win(
    commit: Commit,
    winner: Winner,
    terms: Terms,
    *,
    pool: str,
    domain: str,
    devices: tuple[Device, ...],
    max_price: int,
    price: int,
    base: int,
    owed: int,
    waits_for: tuple[str, ...],
    weight: int = 0,
    parts: tuple[int, ...] = (),
    age: int = 0,
    instant: bool = False,
    levy_percent: int = preemption.LEVY_PERCENT,
    term: Term = _NO_TERM,
    moved_from: str = "",
    budget: Budget = _NO_BUDGET,
    pools: tuple[PoolPart, ...] = (),
    funds: Mapping[str, int] = _ITS_OWN,
) -> Lease:
    """
    A new lease, its hold opened. It is ready once all of `waits_for` have left. Without a
    `weight` its devices are whole. `pools`: what of it is of which, if of several.
    `funds`: by pool, what of `owed` its fund gets, if not its own pool's gets all.

    What it owes to those it displaces is rent paid ahead, into the fund that compensates
    them: so the fund is as full after a round as before it, whoever displaced whom.
    """
    weight = weight or GPU_WEIGHT * len(devices)
    lease = Lease(
        id=lease_id(winner.bid_uid),
        **winner._asdict(),
        **terms._asdict(),
        pool=pool,
        domain=domain,
        devices=devices,
        max_price=max_price,
        win_price=price,
        win_base=base,
        price=price,
        weight=weight,
        parts=parts,
        minimum=max(owed, rent(price, weight, MINIMUM_SECONDS)),
        metered=-owed,
        charged=owed,
        ready=not waits_for,
        waits_for=waits_for,
        age=age,
        instant=instant,
        levy_percent=levy_percent,
        term_seconds=term.seconds,
        renews=term.renews,
        moved_from=moved_from,
        budget=budget.amount,
        work=budget.work,
        pools=pools,
        won_at=commit.at,
        ready_at=0 if waits_for else commit.at,
    )
    if funds and sum(funds.values()) != owed:
        raise BrokenPromise(f"lease {lease.id}: the funds get {funds}, and {owed} is owed")
    for name, amount in funds.items() or ((pool, owed),):
        if amount:
            commit.transfer(
                _transfer_id(f"preemption/{lease.id}", name, funds),
                TransferKind.PREEMPTION,
                debit=lease.wallet,
                credit=fund_of(name),
                amount=amount,
                lease=lease.id,
            )
    lease = _open_hold(commit, lease, hold_for(max_price, weight, terms, term.seconds) - owed)
    commit.add_lease(lease)
    return lease


def claim(commit: Commit, id: str) -> Lease:
    """The devices are in a pod's hands: time runs from here, if they are free yet."""
    lease = _lease(commit, id)
    if lease.phase is Phase.PENDING and lease.ready:
        lease = msgspec.structs.replace(
            lease,
            phase=after(lease.phase, Event.CLAIMED),
            active_at=commit.at,
            charged_until=commit.at,
            settled_at=commit.at,
            term_until=commit.at + 1000 * lease.term_seconds if lease.term_seconds else 0,
        )
    elif lease.claimed:
        return lease
    lease = msgspec.structs.replace(lease, claimed=True)
    commit.change_lease(lease)
    return lease


def note_up(commit: Commit, id: str) -> None:
    """What runs on it is ready: how long that took counts for its agent's restart class."""
    lease = _lease(commit, id)
    if lease.up_at or lease.phase is not Phase.ACTIVE:
        return
    commit.change_lease(msgspec.structs.replace(lease, up_at=commit.at))
    wallet = commit.account(lease.wallet)
    if wallet is not None:
        took = commit.at - lease.active_at
        commit.change_account(
            msgspec.structs.replace(
                wallet,
                starts=wallet.starts + 1,
                start_ms=preemption.smoothed(wallet.starts, wallet.start_ms, took),
            )
        )


def note_idle(commit: Commit, id: str, since: int) -> None:
    """Its GPUs do nothing since then; 0: they work, or nobody knows."""
    commit.change_lease(msgspec.structs.replace(_lease(commit, id), idle_since=since))


def is_unclaimed(lease: Lease, at: int) -> bool:
    """Whether it has kept others from its devices for long enough."""
    waiting = lease.phase is Phase.PENDING and lease.ready and not lease.claimed
    return waiting and at >= lease.ready_at + CLAIM_MILLISECONDS


def needs_settling(commit: Commit, lease: Lease) -> bool:
    """At each epoch's end, and before its hold is too small for the rent of a notice."""
    if lease.phase is not Phase.ACTIVE or lease.breached_at:
        return False
    left = commit.hold(lease.hold).amount - lease.meter(commit.at).balance
    least = rent(lease.max_price, lease.weight, reserve_seconds(lease.notice_seconds))
    return left < least or commit.at >= lease.settled_at + 1000 * lease.epoch_seconds


def is_protected(lease: Lease, at: int) -> bool:
    """Whether its term runs: nobody displaces it, and its price stands."""
    return at < lease.term_until


def is_expired(lease: Lease, at: int) -> bool:
    """Whether it must have its notice now, to be gone when its term is over."""
    ends = lease.term_until - 1000 * lease.notice_seconds
    return bool(lease.term_until) and not lease.renews and at >= ends


def settle(commit: Commit, id: str) -> Event | None:
    """Bill what was used and hold the next epoch; or why that cannot be held."""
    lease, left = _bill(commit, _lease(commit, id))
    commit.change_lease(lease)
    terms = terms_of(lease)
    ahead = max(0, -lease.meter(commit.at).balance)  # paid already: need not be held again
    left_of_term = max(0, lease.term_until - commit.at) // 1000
    wanted = max(0, hold_for(lease.max_price, lease.weight, terms, left_of_term) - ahead)
    why = None
    budget = budgets.left_of(commit, lease)
    if budget is not None and budget < wanted:
        # Used up to the last, but never so that less than the notice would be held.
        least = rent(lease.max_price, lease.weight, reserve_seconds(lease.notice_seconds))
        why = Event.BUDGET_SPENT if budget < least - ahead else None
        wanted = budget
    wallet = commit.account(lease.wallet)
    if wallet is None or wallet.available < wanted:
        why = Event.UNFUNDED
    # Unfunded, it drains on what was already held.
    lease = _open_hold(commit, lease, left if why else wanted)
    commit.change_lease(lease)
    return why


def raise_bid(commit: Commit, id: str, max_price: int) -> bool:
    """
    Its holder offers more for it: from now on it ranks by that, and holds it. False, and
    nothing changes, if it is no more, or wallet or budget cannot cover it.
    """
    lease = _lease(commit, id)
    if max_price <= lease.max_price or lease.phase is not Phase.ACTIVE or lease.breached_at:
        return False
    left = commit.hold(lease.hold).amount - lease.meter(commit.at).due
    left_of_term = max(0, lease.term_until - commit.at) // 1000
    wanted = hold_for(max_price, lease.weight, terms_of(lease), left_of_term)
    wallet = commit.account(lease.wallet)
    budget = budgets.left_of(commit, lease)
    if wallet is None or wallet.available + left < wanted:
        return False
    if budget is not None and budget + left < wanted:
        return False
    commit.change_lease(msgspec.structs.replace(lease, max_price=max_price))
    return settle(commit, id) is None


def reprice(commit: Commit, id: str, price: int) -> None:
    """From now on. What was used until now stays at the old price."""
    lease = _lease(commit, id)
    if price > lease.max_price:
        raise BrokenPromise(f"lease {id}: {price} is above its bid of {lease.max_price}")
    meter = lease.meter(commit.at)
    commit.change_lease(_metered(msgspec.structs.replace(lease, price=price), meter))


def notice(
    commit: Commit,
    id: str,
    event: Event,
    *,
    compensation: int = 0,
    funds: Mapping[str, int] = _ITS_OWN,
) -> Lease:
    """
    Outbid or out of money: billed to now, compensated, and given time to save its work.
    `funds`: by pool, what of the compensation its fund pays, if not its own pool's pays all.
    """
    lease, left = _bill(commit, _lease(commit, id))
    lease = _open_hold(commit, lease, left)
    if funds and sum(funds.values()) != compensation:
        raise BrokenPromise(f"lease {id}: the funds pay {funds}, and {compensation} is owed")
    for name, amount in funds.items() or ((lease.pool, compensation),):
        if amount:
            commit.transfer(
                _transfer_id(f"compensation/{id}", name, funds),
                TransferKind.COMPENSATION,
                debit=fund_of(name),
                credit=lease.wallet,
                amount=amount,
                lease=id,
            )
    lease = msgspec.structs.replace(
        lease,
        phase=after(lease.phase, event),
        reason=event.value,
        notice_at=commit.at,
        reclaim_at=commit.at + 1000 * lease.notice_seconds,
        compensation=compensation,
    )
    commit.change_lease(lease)
    return lease


def keep(commit: Commit, id: str, *, domain: str, devices: tuple[Device, ...]) -> Lease:
    """
    Devices for the holder of a lease that moves, out of the market until its next bid takes them
    up, or until a minute after it has left. Nothing is held and nothing is charged for it.
    """
    before = _lease(commit, id)
    uid = f"move/{id}"
    kept = Lease(
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
        minimum=0,
        ready=False,
        waits_for=(id,),
        age=before.age,
        won_at=commit.at,
        moved_from=id,
    )
    kept = _open_hold(commit, kept, 0)
    commit.add_lease(kept)
    return kept


def take_up(
    commit: Commit,
    id: str,
    winner: Winner,
    terms: Terms,
    *,
    max_price: int,
    levy_percent: int,
    budget: Budget = _NO_BUDGET,
) -> Lease:
    """The kept devices become the winner's, at the price it had where it was moved from."""
    kept = release(commit, id, Event.LEFT)
    return win(
        commit,
        winner,
        terms,
        pool=kept.pool,
        domain=kept.domain,
        devices=kept.devices,
        max_price=max_price,
        price=min(kept.price, max_price),
        base=kept.win_base,
        owed=0,
        waits_for=(),
        weight=kept.weight,
        age=kept.age,
        levy_percent=levy_percent,
        moved_from=kept.moved_from,
        budget=budget,
    )


def breach(commit: Commit, id: str, *, unused: bool = False) -> Lease:
    """
    A device of it is gone: its rent stops here, and giving it back costs nothing more. One that
    was `unused`, because its device was never made ready, does not owe what ran up since its
    last bill either.
    """
    lease = _lease(commit, id)
    meter = lease.meter(commit.at)
    if unused and lease.settled_at == lease.active_at:
        meter = Meter(-lease.charged * MICRO_CREDIT, commit.at)  # as it was when it began
    lease = _metered(msgspec.structs.replace(lease, breached_at=commit.at), meter)
    commit.change_lease(lease)
    return lease


def mend(commit: Commit, id: str) -> Lease:
    """The device is back: rent runs again from here. What it was gone for is not charged."""
    lease = _lease(commit, id)
    lease = msgspec.structs.replace(lease, breached_at=0, charged_until=commit.at)
    commit.change_lease(lease)
    return lease


def release(commit: Commit, id: str, event: Event) -> Lease:
    """The end: the last bill, the rest of the hold returned, whoever waited is served."""
    before = _lease(commit, id)
    is_void = before.breached_at or event is Event.INVENTORY_CHANGED
    lease, _ = _bill(commit, before, least=0 if is_void else before.minimum)
    lease = msgspec.structs.replace(
        lease,
        phase=after(lease.phase, event),
        reason=lease.reason or event.value,
        released_at=commit.at,
        hold="",
    )
    commit.change_lease(lease)
    for waiting in commit.live_leases():
        if id in waiting.waits_for:
            rest = tuple(other for other in waiting.waits_for if other != id)
            commit.change_lease(
                msgspec.structs.replace(
                    waiting,
                    waits_for=rest,
                    ready=not rest,
                    ready_at=0 if rest else commit.at,
                )
            )
    return lease


def _lease(commit: Commit, id: str) -> Lease:
    found = commit.lease(id)
    if found is None:
        raise BrokenPromise(f"there is no lease {id}")
    return found


def _bill(commit: Commit, lease: Lease, *, least: int = 0) -> tuple[Lease, int]:
    """
    Capture what is due from the open hold, which closes it. Returns the lease, and what
    the hold had left.

    If rounds were late, the meter may have passed the hold: time that was not held is
    not charged. `least` is what the lease owes over its whole life.
    """
    meter = lease.meter(commit.at)
    hold = commit.hold(lease.hold)
    due = min(max(meter.due, least - lease.charged), hold.amount)
    commit.close_hold(hold, captured=due)
    levy = preemption.levy(due, lease.levy_percent)
    levies = shared_out(levy, [(p.pool, p.worth) for p in lease.pools] or [(lease.pool, 1)])
    bill = f"{lease.id}/{lease.holds}"
    for id, kind, credit, amount in (
        (f"rent/{bill}", TransferKind.RENT, REVENUE, due - levy),
        *(
            (
                _transfer_id(f"levy/{bill}", name, lease.pools),
                TransferKind.LEVY,
                fund_of(name),
                part,
            )
            for name, part in levies.items()
        ),
    ):
        if amount:
            commit.transfer(
                id, kind, debit=lease.wallet, credit=credit, amount=amount, lease=lease.id
            )
    billed = meter.billed() if due == meter.due else Meter(0, meter.until)
    lease = msgspec.structs.replace(lease, charged=lease.charged + due, settled_at=commit.at)
    return _metered(lease, billed), hold.amount - due


def shared_out(amount: int, weights: Sequence[tuple[str, int]]) -> dict[str, int]:
    """An amount by weight, to the last micro-credit: the parts make the whole."""
    total = sum(weight for _, weight in weights)
    parts: dict[str, int] = {}
    before = given = 0
    for name, weight in weights:
        before += weight
        parts[name] = amount * before // total - given
        given += parts[name]
    return parts


def _transfer_id(id: str, pool: str, several: Collection[object]) -> str:
    """What is one transfer, unless it comes from or goes to the funds of several pools."""
    return f"{id}/{pool}" if several else id


def _metered(lease: Lease, meter: Meter) -> Lease:
    whole, rest = divmod(meter.metered, MICRO_CREDIT)
    return msgspec.structs.replace(
        lease, metered=whole, metered_rest=rest, charged_until=meter.until
    )


def _open_hold(commit: Commit, lease: Lease, amount: int) -> Lease:
    number = lease.holds + 1
    id = f"{lease.id}/{number}"
    commit.open_hold(Hold(id=id, account=lease.wallet, lease=lease.id, amount=amount))
    return msgspec.structs.replace(lease, hold=id, holds=number)
