"""What a round is given: the bids that stand, the devices that are free, and at which prices."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from bidplane.api.bid import BidReason
from bidplane.api.money import GPU_WEIGHT, format_credits
from bidplane.core.beside import Needs, Unpriced, in_words
from bidplane.core.chain import anywhere, block_size, blocks_in
from bidplane.core.claims import ClaimError
from bidplane.core.market import Ask, Incumbent, Lot, RoundInput, instant, preemption
from bidplane.core.market.model import ONE
from bidplane.core.market.prices import BasePrice, advance
from bidplane.core.placement import sizes_of
from bidplane.exchange import inventory, sitting, spanning
from bidplane.exchange.desk import Kept
from bidplane.exchange.inventory import Shop, Stock
from bidplane.exchange.snapshot import BidView, Snapshot
from bidplane.ledger import budgets, leases, wallets
from bidplane.ledger.commit import Commit
from bidplane.ledger.records import Lease, LotPrice, fund_of, wallet_of

Refusals = dict[str, tuple[BidReason, str]]  # by uid, bids that no lot can serve as they are


def round_input(
    commit: Commit, snapshot: Snapshot, standing: Sequence[BidView], shop: Shop
) -> tuple[RoundInput, dict[str, Kept], Refusals]:
    """
    What the market is given; by lot, what is kept out of it for the instant path; and the
    bids that take no part because nothing is sold as they want it.
    """
    live = commit.live_leases()
    movers = frozenset(wallet_of(agent.uid) for agent in snapshot.agents if agent.movable)
    # Their next bid would be sold by the machine, and not take up what is kept for it.
    staying = frozenset(
        lease.id
        for bid in snapshot.bids
        if bid.one_node and (lease := commit.lease_of_bid(bid.uid)) is not None
    )
    kept: dict[str, Kept] = {}
    lots: list[Lot] = []
    running: list[Incumbent] = []
    prices = {item.lot: price_now(commit, item) for item in shop.stocks}
    _seed_funds(commit, shop.stocks, prices, live)
    sizes: dict[str, int] = {}
    for item in shop.stocks:
        sizes[item.pool.name] = sizes.get(item.pool.name, 0) + item.devices
    for item in shop.stocks:
        pool, price = item.pool, prices[item.lot]
        fund = commit.account(fund_of(pool.name))
        # Lots of one pool share its fund, each as large as it is.
        part = fund.available * item.devices // max(1, sizes[pool.name]) if fund else 0
        domains = inventory.domains(item, live)
        waiting = _waiting(standing, item) if pool.float_percent else ()
        kept[item.lot] = instant.choose(domains, waiting=waiting, percent=pool.float_percent)
        lots.append(
            Lot(
                name=item.lot,
                base=price.base,
                posted=max(price.posted, price.base),
                fund=part,
                domains=instant.without(domains, kept[item.lot]),
                leaves=item.leaves,
                exact=pool.exact,
                floated=len(kept[item.lot]),
                chain=pool.chain,
                withheld=item.withheld,
            )
        )
        running += sitting.incumbents(
            item, live, base=price.base, at=commit.at, movers=movers, staying=staying
        )
    running += spanning.incumbents(
        shop.stocks,
        live,
        known={incumbent.id for incumbent in running},
        bases={lot: price.base for lot, price in prices.items()},
        at=commit.at,
    )
    asks, refused = _asks(commit, snapshot, standing, shop)
    available = {
        agent.name: wallet.available
        for agent in snapshot.agents
        if (wallet := commit.account(wallet_of(agent.uid))) is not None and wallet.is_open
    }
    given = RoundInput(
        at=commit.at,
        lots=tuple(lots),
        asks=tuple(sorted(asks, key=lambda ask: ask.id)),
        incumbents=tuple(running),
        available=available,
    )
    return given, kept, refused


def _waiting(standing: Sequence[BidView], item: Stock) -> set[int]:
    """The sizes of the blocks that bids want, or would have instead, of that lot's pool."""
    pool = item.pool
    blocks = blocks_in(map(len, item.domains.values()), pool.chain)
    found: set[int] = set()
    for bid in standing:
        for choice in bid.every_need:
            if choice.share or choice.pool not in ("", pool.name):
                continue
            if choice.spread:
                block = anywhere(choice.gpus, blocks)
                found.update(sizes_of(block) if block else ())
            else:
                size = item.domain if choice.whole_domain else block_size(choice.gpus, pool.chain)
                found.add(size or choice.gpus)
    return found


def _seed_funds(
    commit: Commit,
    stocks: Sequence[Stock],
    prices: Mapping[str, LotPrice],
    live: Sequence[Lease],
) -> None:
    # A lease of several pools may have stricter terms than each of them: a fund covers those.
    several = [lease for lease in live if lease.pools]
    for pool in {item.pool.name: item.pool for item in stocks}.values():
        mine = [leases.terms_of(lease) for lease in several if pool.name in lease.pool_names]
        terms = spanning.strictest([pool.terms, *mine])
        wanted = sum(
            preemption.seed(
                preemption.seed_price(pool.floor, prices[item.lot].base),
                item.devices,
                terms.notice_seconds,
                terms.restart_seconds,
            )
            for item in stocks
            if item.pool.name == pool.name
        )
        wallets.seed_fund(commit, pool=pool.name, wanted=wanted)


def _asks(
    commit: Commit, snapshot: Snapshot, standing: Sequence[BidView], shop: Shop
) -> tuple[list[Ask], Refusals]:
    owners = {agent.name: agent.owner for agent in snapshot.agents}
    asks: list[Ask] = []
    refused: Refusals = _over_budget(commit, snapshot, standing, shop.stocks)
    ages = _ages(standing, owners, commit.at)
    for bid in standing:
        if bid.uid not in ages:
            refused[bid.uid] = BidReason.TOO_MANY_BIDS, _TOO_MANY
        if bid.uid in refused:
            continue
        able: list[Ask] = []
        why: list[tuple[BidReason, str]] = []
        for option, choice in enumerate((bid, *bid.otherwise)):
            made = _routable(_ask(choice, owners, shop.stocks, ages[bid.uid]), choice, shop)
            if bid.beside and isinstance(made, Ask):
                made = _where_beside(made, bid.beside, snapshot.unpriced, shop.stocks)
            if isinstance(made, Ask):
                able.append(msgspec.structs.replace(made, option=option))
            else:
                why.append(made)
        if able:
            first, *rest = able
            asks.append(msgspec.structs.replace(first, otherwise=tuple(rest)))
        else:
            refused[bid.uid] = why[0]
    return asks, refused


def _routable(ask: Ask, bid: BidView, shop: Shop) -> Ask | tuple[BidReason, str]:
    """The ask, with the lots that will do for each of its needs; or why one cannot be served."""
    needs = []
    for at, need in enumerate((bid, *bid.also)):
        lots = shop.lots_for(need)
        if lots and isinstance(lots[0], BidReason):
            return lots[0], lots[1] if at == 0 else f"also[{at - 1}]: {lots[1]}"
        part = ask if at == 0 else msgspec.structs.replace(ask, **_shape(need), hold={})
        # A pool nobody has is named to the round, which says so.
        lot = "" if lots else need.pool
        needs.append(msgspec.structs.replace(part, lot=lot, lots=lots))
    first, *also = needs
    return msgspec.structs.replace(first, also=tuple(also), one_node=bid.one_node)


def _where_beside(
    ask: Ask, needs: Needs, unpriced: Unpriced, stocks: Sequence[Stock]
) -> Ask | tuple[BidReason, str]:
    """The ask, in machines that have what it needs beside; or why there is none."""
    machines = {
        inventory.machine(members[0]): members[0].node
        for item in stocks
        if item.lot in ask.lots
        for members in item.domains.values()
    }
    if not machines:
        return ask  # the round says that there is nothing
    what = in_words(needs)
    try:
        free = unpriced.sets(needs, ask.blocks)
        here = {machine: free[node] for machine, node in machines.items() if node in free}
        if here:
            return msgspec.structs.replace(ask, machines=here)
        known = unpriced.sets(needs, whoever_has_it=True)
    except ClaimError as error:
        return BidReason.BAD_BID, str(error)
    if any(node in known for node in machines.values()):
        return BidReason.DEVICE_TAKEN, (
            f"no machine with such GPUs has {what} free now, which it needs beside them; the bid"
            " stands"
        )
    if unknown := unpriced.unknown(needs):
        return BidReason.NO_SUCH_CLASS, (
            f"its machine must have {what} beside its GPUs, and the host has no DeviceClass"
            f" {', '.join(unknown)}: ask its owner to create it, or take it out"
        )
    return BidReason.NO_SUCH_DEVICE, (
        f"no machine with such GPUs has {what}, which it needs beside them and nobody sells; take"
        " it out, or ask for other GPUs"
    )


def _shape(need: BidView) -> dict[str, Any]:
    return {
        "gpus": need.gpus,
        "blocks": need.blocks,
        "spread": need.spread,
        "whole_domain": need.whole_domain,
        "share": need.share,
    }


def _over_budget(
    commit: Commit, snapshot: Snapshot, standing: Sequence[BidView], stocks: Sequence[Stock]
) -> Refusals:
    """The bids whose budget does not cover what they would hold, the earlier of one work first."""
    wallets_of = {agent.name: wallet_of(agent.uid) for agent in snapshot.agents}
    promised: dict[tuple[str, str], int] = {}
    over: Refusals = {}
    for bid in sorted(standing, key=lambda bid: (bid.created, bid.uid)):
        if not bid.budget:
            continue
        key = wallets_of[bid.agent], bid.work
        left = budgets.left(commit, *key, bid.budget) - promised.get(key, 0)
        needed = max(
            (hold for choice in (bid, *bid.otherwise) for hold in _holds(choice, stocks).values()),
            default=0,
        )
        if needed <= left:
            promised[key] = promised.get(key, 0) + needed
            continue
        over[bid.uid] = (
            BidReason.BUDGET_SPENT,
            f"its budget has {format_credits(max(0, left))} left, and at its price it must hold"
            f" {format_credits(needed)}; raise the budget, or bid less",
        )
    return over


def _holds(bid: BidView, stocks: Sequence[Stock]) -> dict[str, int]:
    """By lot, what it must hold to win there; of several lots at once, whichever they are."""
    if not bid.is_joint:
        return {
            item.lot: leases.hold_for(
                bid.price, weight_in(bid, item), item.pool.terms, bid.term_seconds
            )
            for item in stocks
            if bid.pool in ("", item.pool.name)
        }
    able = [item for item in stocks for need in bid.needs if need.pool in ("", item.pool.name)]
    if not able:
        return {}
    terms = spanning.strictest(item.pool.terms for item in able)
    hold = leases.hold_for(bid.price, weight_of(bid, stocks), terms, bid.term_seconds)
    return {item.lot: hold for item in able}


def standing_bids(commit: Commit, snapshot: Snapshot) -> list[BidView]:
    """The bids that take part: readable, of an agent that stays, and not yet won with."""
    staying = {a.name for a in snapshot.agents if not a.deleting and not a.suspended}
    # A uid is one bid's. If a host ever shows it twice, the first by name stands for it.
    unique = {bid.uid: bid for bid in sorted(snapshot.bids, key=by_name, reverse=True)}
    return [
        bid
        for bid in unique.values()
        if not bid.problem
        and bid.agent in staying
        and not 0 < 1000 * bid.deadline <= commit.at
        and commit.lease_of_bid(bid.uid) is None
    ]


def by_name(bid: BidView) -> tuple[str, str]:
    return bid.namespace, bid.name


def _ask(bid: BidView, owners: Mapping[str, str], stocks: Sequence[Stock], age: int) -> Ask:
    # The earlier bid goes first; within a second a hash decides, which nobody can choose
    # to any effect. Running leases have small ties: they go before equal bids.
    chance = int.from_bytes(hashlib.sha256(bid.uid.encode()).digest()[:4], "big")
    return Ask(
        id=bid.uid,
        agent=bid.agent,
        owner=owners[bid.agent],
        **_shape(bid),
        price=bid.price,
        weight=ONE + age,
        premium=preemption.TERM_PREMIUM_PERCENT if bid.term_seconds else 0,
        tie=((bid.created + 1) << 32) | chance,
        hold=_holds(bid, stocks),
    )


def weight_in(bid: BidView, item: Stock) -> int:
    """What it would pay of its price in that lot, in 56ths; 0 where it is not sold."""
    if bid.share:
        leaf = item.leaf(bid.share)
        return leaf.weight * bid.gpus * bid.blocks if leaf else 0
    if bid.spread:
        return GPU_WEIGHT * bid.gpus
    size = item.domain if bid.whole_domain else block_size(bid.gpus, item.pool.chain)
    return GPU_WEIGHT * (size or bid.gpus) * bid.blocks


def weight_of(bid: BidView, stocks: Sequence[Stock]) -> int:
    """The most it would pay of its price, for all that it needs at once."""
    return bid.sets * sum(
        max((weight_in(need, i) for i in stocks if need.pool in ("", i.pool.name)), default=0)
        for need in bid.needs
    )


STANDING_MOST = 1000  # bids of one owner
_TOO_MANY = f"its owner has {STANDING_MOST} older bids that stand; end some, or wait until they win"


def _ages(standing: Sequence[BidView], owners: Mapping[str, str], at: int) -> dict[str, int]:
    """
    By bid, what waiting adds to its rank. An owner's bids share it: the oldest has all that
    it waited for, the second half of it, and so on; or many small bids would age more than a
    large one.
    """
    ages: dict[str, int] = {}
    counts: dict[str, int] = {}
    for bid in sorted(standing, key=lambda bid: (bid.created, bid.uid)):
        place = counts[owners[bid.agent]] = counts.get(owners[bid.agent], 0) + 1
        # In steps of a minute, so that a bid that waits is not news each second.
        waited = at // 1000 - bid.created if bid.created else 0
        if place <= STANDING_MOST:
            ages[bid.uid] = preemption.age(waited - waited % 60) // place
    return ages


def price_now(commit: Commit, item: Stock) -> LotPrice:
    """The lot's price as it is now: a function of what was written down, and the time."""
    pool = item.pool
    known = commit.lot(item.lot)
    if known is None:
        parent = commit.lot(pool.name)  # it was split off: it begins at the whole's price
        return LotPrice(
            lot=item.lot,
            base=max(pool.floor, parent.base) if parent else pool.floor,
            posted=max(pool.floor, parent.posted) if parent else pool.floor,
            devices=item.devices,
            leased=0,
            used=0,
            unserved=0,
            at=commit.at,
        )
    moved = advance(
        BasePrice(
            base=known.base,
            at=known.at,
            devices=GPU_WEIGHT * known.devices,
            leased=known.used,
            unserved=known.unserved,
        ),
        commit.at,
        floor=pool.floor,
        target_percent=pool.target_percent,
    )
    return msgspec.structs.replace(known, base=moved.base, at=moved.at)
