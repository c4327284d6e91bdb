"""The input of a round: the bids that stand, the devices that are free, and the prices."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from bidplane.api.bid import BidReason
from bidplane.api.money import GPU_WEIGHT, format_credits
from bidplane.api.shape import Shape, fields_of
from bidplane.core.devices.chain import anywhere
from bidplane.core.devices.claims import ClaimError
from bidplane.core.devices.companions import Needs, Unpriced, in_words
from bidplane.core.devices.placement import sizes_of
from bidplane.core.market import Ask, Incumbent, Lot, RoundInput, shapes
from bidplane.core.market.clearing import preemption
from bidplane.core.market.model import ONE, RULES
from bidplane.core.market.pricing import instant
from bidplane.core.market.pricing.reserve import BasePrice, advance
from bidplane.exchange.instantsales import Kept
from bidplane.exchange.round import incumbents, multilot
from bidplane.exchange.round import machines as hosting
from bidplane.exchange.round.inventory import LotDevices, MarketInventory, domains_for_sale, machine
from bidplane.exchange.round.termbounds import TermBounds
from bidplane.exchange.snapshot import AgentView, BidView, HostSnapshot
from bidplane.ledger import budgets, leases, wallets
from bidplane.ledger.commit import Commit
from bidplane.ledger.records import LotPrice, wallet_of

Refusals = dict[str, tuple[BidReason, str]]  # by uid, bids that no lot can serve as they are


def round_input(
    commit: Commit, snapshot: HostSnapshot, standing: Sequence[BidView], inventory: MarketInventory
) -> tuple[RoundInput, dict[str, Kept], Refusals]:
    """
    The input of the market; by lot, the devices kept out of it for the float; and the bids that
    take no part because nothing is sold as they want it.
    """
    live = commit.live_leases()
    movers = frozenset(wallet_of(agent.uid) for agent in snapshot.agents if agent.movable)
    # Their next bid would be sold by the machine, and not use the devices reserved for it.
    staying = frozenset(
        lease.id
        for bid in snapshot.bids
        if bid.one_node and not bid.is_loose and (lease := commit.lease_of_bid(bid.uid)) is not None
    )
    floated: dict[str, Kept] = {}
    lots: list[Lot] = []
    running: list[Incumbent] = []
    prices = {item.lot: price_now(commit, item) for item in inventory.stocks}
    urgent = frozenset(
        lease.id
        for bid in snapshot.bids
        if bid.urgent and (lease := commit.lease_of_bid(bid.uid)) is not None
    )
    for item in inventory.stocks:
        pool, price = item.pool, prices[item.lot]
        wallets.open_fund(commit, pool.name)
        domains = domains_for_sale(item, live)
        waiting = _waiting(standing, item) if pool.float_percent else ()
        floated[item.lot] = instant.choose(domains, waiting=waiting, percent=pool.float_percent)
        lots.append(
            Lot(
                name=item.lot,
                base=price.base,
                posted=max(price.posted, price.base),
                domains=instant.without(domains, floated[item.lot]),
                leaves=item.leaves,
                exact=pool.exact,
                floated=len(floated[item.lot]),
                chain=pool.chain,
                memory=item.memory,
                withheld=item.withheld,
                reserved=incumbents.reserved(item, live, at=commit.at),
            )
        )
        running += incumbents.incumbents(
            item, live, base=price.base, at=commit.at, movers=movers, staying=staying
        )
    running += multilot.incumbents(
        inventory.stocks,
        live,
        in_one_lot={incumbent.id for incumbent in running},
        bases={lot: price.base for lot, price in prices.items()},
        at=commit.at,
    )
    running = [
        msgspec.structs.replace(lease, urgent=True) if lease.id in urgent else lease
        for lease in running
    ]
    asks, refused = _asks(commit, snapshot, standing, inventory)
    available = {
        agent.name: wallet.available
        for agent in snapshot.agents
        if (wallet := commit.account(wallet_of(agent.uid))) is not None and wallet.is_open
    }
    market_input = RoundInput(
        at=commit.at,
        lots=tuple(lots),
        asks=tuple(sorted(asks, key=lambda ask: ask.id)),
        incumbents=tuple(running),
        available=available,
        budgets=_budgets_left(commit, snapshot, standing),
        rules=RULES,
    )
    return market_input, floated, refused


def _waiting(standing: Sequence[BidView], item: LotDevices) -> set[int]:
    """The sizes of the blocks that bids want, or would have instead, of that lot's pool."""
    pool = item.pool
    sizes: set[int] = set()
    for bid in standing:
        for choice in bid.every_need:
            if choice.is_part or choice.pool not in ("", pool.name):
                continue
            if choice.spread:
                block = anywhere(choice.gpus, item.extent.blocks)
                sizes.update(sizes_of(block) if block else ())
            else:
                sizes.add(shapes.gpus_of_block(choice, item.extent))
    return sizes


def _asks(
    commit: Commit, snapshot: HostSnapshot, standing: Sequence[BidView], inventory: MarketInventory
) -> tuple[list[Ask], Refusals]:
    owners = {agent.name: agent.owner for agent in snapshot.agents}
    asks: list[Ask] = []
    refused: Refusals = _over_budget(commit, snapshot, standing, inventory.stocks)
    ages = _ages(standing, snapshot.agents, commit.at)
    bounds = {agent.name: agent.max_bids for agent in snapshot.agents}
    terms = TermBounds(commit, snapshot, inventory.stocks)
    for bid in terms.in_order(standing):
        if bid.uid not in ages:
            refused[bid.uid] = BidReason.TOO_MANY_BIDS, _too_many(bounds[bid.agent])
        if bid.uid in refused:
            continue
        able: list[Ask] = []
        reasons: list[tuple[BidReason, str]] = []
        for option, choice in enumerate((bid, *bid.otherwise)):
            routed = _routable(
                _ask(choice, owners, inventory.stocks, ages[bid.uid]), choice, inventory
            )
            if bid.beside and isinstance(routed, Ask):
                routed = _where_beside(routed, bid.beside, snapshot.unpriced, inventory.stocks)
            if isinstance(routed, Ask) and (bid.requests or bid.terms):
                routed = hosting.where_it_fits(routed, bid, snapshot.hosts, inventory.stocks)
            if isinstance(routed, Ask) and bid.term_seconds:
                routed = terms.restrict(routed, bid)
            if isinstance(routed, Ask):
                able.append(msgspec.structs.replace(routed, option=option))
            else:
                reasons.append(routed)
        if able:
            if bid.term_seconds:
                terms.admit(able, bid)
            first, *alternatives = able
            asks.append(msgspec.structs.replace(first, otherwise=tuple(alternatives)))
        else:
            refused[bid.uid] = reasons[0]
    return asks, refused


def _routable(ask: Ask, bid: BidView, inventory: MarketInventory) -> Ask | tuple[BidReason, str]:
    """The ask, with the lots that will do for each of its needs; or why one cannot be served."""
    needs = []
    for at, need in enumerate((bid, *bid.also)):
        lots = inventory.lots_for(need)
        if lots and isinstance(lots[0], BidReason):
            return lots[0], lots[1] if at == 0 else f"also[{at - 1}]: {lots[1]}"
        part = ask if at == 0 else msgspec.structs.replace(ask, **fields_of(Shape, need), hold={})
        # A pool nobody has is named to the round, which says so.
        lot = "" if lots else need.pool
        needs.append(msgspec.structs.replace(part, lot=lot, lots=lots))
    first, *also = needs
    return msgspec.structs.replace(first, also=tuple(also), one_node=bid.one_node)


def _where_beside(
    ask: Ask, needs: Needs, unpriced: Unpriced, stocks: Sequence[LotDevices]
) -> Ask | tuple[BidReason, str]:
    """The ask, in machines that have its companion devices; or why there is none."""
    machines = {
        machine(members[0]): members[0].node
        for item in stocks
        if item.lot in ask.lots
        for members in item.domains.values()
    }
    if not machines:
        return ask  # the round says that there is nothing
    companions = in_words(needs)
    try:
        free = unpriced.sets(needs, ask.blocks)
        able = {key: free[node] for key, node in machines.items() if node in free}
        if able:
            return msgspec.structs.replace(ask, machines=able)
        existing = unpriced.sets(needs, whoever_has_it=True)
    except ClaimError as error:
        return BidReason.BAD_BID, str(error)
    if any(node in existing for node in machines.values()):
        return BidReason.DEVICE_TAKEN, (
            f"no machine with such GPUs has {companions} free now, which it needs beside them; the"
            " bid stands"
        )
    if unknown := unpriced.unknown(needs):
        return BidReason.NO_SUCH_CLASS, (
            f"its machine must have {companions} beside its GPUs, and the host has no DeviceClass"
            f" {', '.join(unknown)}: ask its owner to create it, or take it out"
        )
    return BidReason.NO_SUCH_DEVICE, (
        f"no machine with such GPUs has {companions}, which it needs beside them and nobody sells;"
        " take it out, or ask for other GPUs"
    )


def _over_budget(
    commit: Commit,
    snapshot: HostSnapshot,
    standing: Sequence[BidView],
    stocks: Sequence[LotDevices],
) -> Refusals:
    """The bids whose budget does not cover what they would hold, the earlier of one work first."""
    wallets_of = {agent.name: wallet_of(agent.uid) for agent in snapshot.agents}
    promised: dict[tuple[str, str], int] = {}
    over: Refusals = {}
    for bid in sorted(standing, key=lambda bid: (bid.created, bid.uid)):
        if not bid.budget:
            continue
        key = wallets_of[bid.agent], bid.work
        remaining = budgets.remaining(commit, *key, bid.budget) - promised.get(key, 0)
        needed = max(
            (hold for choice in (bid, *bid.otherwise) for hold in _holds(choice, stocks).values()),
            default=0,
        )
        if needed <= remaining:
            promised[key] = promised.get(key, 0) + needed
            continue
        over[bid.uid] = (
            BidReason.BUDGET_SPENT,
            f"its budget has {format_credits(max(0, remaining))} left, and at its price it must"
            f" hold {format_credits(needed)}; raise the budget, or bid less",
        )
    return over


def _budgets_left(
    commit: Commit, snapshot: HostSnapshot, standing: Sequence[BidView]
) -> dict[str, int]:
    """
    By budget that a bid is paid from, the credits left; the least that a bid of its work names.
    """
    wallets_of = {agent.name: wallet_of(agent.uid) for agent in snapshot.agents}
    remaining: dict[str, int] = {}
    for bid in standing:
        if bid.budget:
            amount = budgets.remaining(commit, wallets_of[bid.agent], bid.work, bid.budget)
            name = _budget_name(bid)
            remaining[name] = min(amount, remaining.get(name, amount))
    return remaining


def _budget_name(bid: BidView) -> str:
    return f"{bid.agent}/{bid.work}" if bid.budget else ""


def _holds(bid: BidView, stocks: Sequence[LotDevices]) -> dict[str, int]:
    """
    By lot, the credits the bid must hold to win there; a joint bid, whichever lots it comes to.
    """
    if not bid.is_joint:
        return {
            item.lot: leases.hold_for(
                bid.price, shapes.weight_in(bid, item.extent), item.pool.terms, bid.term_seconds
            )
            for item in stocks
            if bid.pool in ("", item.pool.name)
        }
    able = [item for item in stocks for need in bid.needs if need.pool in ("", item.pool.name)]
    if not able:
        return {}
    terms = multilot.strictest(item.pool.terms for item in able)
    hold = leases.hold_for(bid.price, weight_of(bid, stocks), terms, bid.term_seconds)
    return {item.lot: hold for item in able}


def standing_bids(commit: Commit, snapshot: HostSnapshot) -> list[BidView]:
    """The bids that take part: readable, of an agent that stays, and not yet won with."""
    staying = {
        agent.name
        for agent in snapshot.agents
        if not (agent.deleting or agent.suspended or agent.problem)
    }
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


def _ask(bid: BidView, owners: Mapping[str, str], stocks: Sequence[LotDevices], age: int) -> Ask:
    # The earlier bid goes first; within a second a hash decides, which nobody can choose
    # to any effect. Running leases have small ties: they go before equal bids.
    chance = int.from_bytes(hashlib.sha256(bid.uid.encode()).digest()[:4], "big")
    return Ask(
        id=bid.uid,
        agent=bid.agent,
        owner=owners[bid.agent],
        **fields_of(Shape, bid),
        price=bid.price,
        weight=ONE + age,
        premium=preemption.TERM_PREMIUM_PERCENT if bid.term_seconds else 0,
        tie=((bid.created + 1) << 32) | chance,
        hold=_holds(bid, stocks),
        urgent=bid.urgent,
        budget=_budget_name(bid),
    )


def weight_of(bid: BidView, stocks: Sequence[LotDevices]) -> int:
    """The highest weight of the bid, for all its needs together."""
    return bid.sets * sum(
        max(
            (shapes.weight_in(need, i.extent) for i in stocks if need.pool in ("", i.pool.name)),
            default=0,
        )
        for need in bid.needs
    )


STANDING_MOST = 1000  # bids of one owner


def _too_many(most: int) -> str:
    return (
        f"its agent has {most} older bids that stand (maxBids of the Agent), or its owner"
        f" {STANDING_MOST}; end some, or wait until they win"
    )


def _ages(standing: Sequence[BidView], agents: Iterable[AgentView], at: int) -> dict[str, int]:
    """
    By bid that may stand, the weight that waiting adds to its rank. An owner's bids share it: the
    oldest has all that it waited for, the second half of it, and so on; or many small bids would
    age more than a large one. Of more bids than an agent or its owner may have, the older ones
    stand.
    """
    owners = {agent.name: agent.owner for agent in agents}
    bounds = {agent.name: agent.max_bids for agent in agents}
    ages: dict[str, int] = {}
    counts: dict[str, int] = {}
    own: dict[str, int] = {}
    for bid in sorted(standing, key=lambda bid: (bid.created, bid.uid)):
        mine = own[bid.agent] = own.get(bid.agent, 0) + 1
        if mine > bounds[bid.agent]:
            continue
        place = counts[owners[bid.agent]] = counts.get(owners[bid.agent], 0) + 1
        # In steps of a minute, so that a bid that waits is not news each second.
        waited = at // 1000 - bid.created if bid.created else 0
        if place <= STANDING_MOST:
            ages[bid.uid] = preemption.age(waited - waited % 60) // place
    return ages


def price_now(commit: Commit, item: LotDevices) -> LotPrice:
    """The lot's price as it is now: a function of the recorded one, and the time."""
    pool = item.pool
    recorded = commit.lot(item.lot)
    if recorded is None:
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
            gpu_weight=GPU_WEIGHT,
        )
    moved = advance(
        BasePrice(
            base=recorded.base,
            at=recorded.at,
            devices=GPU_WEIGHT * recorded.devices,
            leased=recorded.used,
            unserved=recorded.unserved,
        ),
        commit.at,
        floor=pool.floor,
        target_percent=pool.target_percent,
    )
    return msgspec.structs.replace(recorded, base=moved.base, at=moved.at)
