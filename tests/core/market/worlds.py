"""
Small contended markets, drawn by seed, and a judge of their rounds that tries everything. Imports
nothing of the clearing it judges.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator
from functools import lru_cache

import msgspec

from bidplane.core.devices import ranges
from bidplane.core.devices.chain import FRACTIONS, PARTS
from bidplane.core.market import Ask, Domain, Incumbent, Lot, RoundInput, RoundResult

BASE = 100
RICH = 10**12
FLEETS = ((8,), (4, 4), (8, 4), (4, 2, 2), (2, 2, 2), (3, 1), (5, 3), (8, 8))
WEIGHTS = (1024, 1280, 1280, 1536)
UNITS_OF = {"0.5": 1200, "0.25": 600, "0.125": 300}  # of 2,400 on a GPU


def world(seed: int, *, parts: bool = False, joint: bool = False, poor: bool = False) -> RoundInput:
    """
    Draw a market of up to 16 GPUs that is full, or nearly. A device that somebody has for a term,
    or that drains, is simply not there. `joint`: there is a second lot, and some need both.
    """
    dice = random.Random(seed)
    lots = [_lot(dice, "a", parts=parts)]
    leases: list[Incumbent] = []
    if joint:
        lots.append(_lot(dice, "b", parts=False))
    lots = [_leased(dice, lot, leases, parts=parts) for lot in lots]
    agents = [f"n{n}" for n in range(6)] if dice.random() < 0.6 else ["n0", "n1", "v0"]
    asks = tuple(
        _ask(dice, n, dice.choice(agents) if len(agents) < 6 else agents[n], lots, parts)
        for n in range(dice.randint(1, 6))
    )
    if joint:
        asks = tuple(_with_second(dice, ask) for ask in asks)
    purse = (60, 200, 900, RICH) if poor else (RICH,)
    everybody = sorted({ask.agent for ask in asks})
    return RoundInput(
        at=0,
        lots=tuple(lots),
        asks=asks,
        incumbents=tuple(leases),
        available={agent: dice.choice(purse) for agent in everybody},
    )


def _lot(dice: random.Random, name: str, *, parts: bool) -> Lot:
    sizes = dice.choice(FLEETS[:6] if parts or name != "a" else FLEETS)
    domains = tuple(
        Domain(name=f"{name}{d}", size=n, free=tuple(f"{name}{d}/{i}" for i in range(n)))
        for d, n in enumerate(sizes)
    )
    leaves = FRACTIONS if parts else ()
    return Lot(name=name, base=BASE, posted=BASE, domains=domains, leaves=leaves)


def _leased(dice: random.Random, lot: Lot, leases: list[Incumbent], *, parts: bool) -> Lot:
    """Lease most of a lot; a domain may lose a device to a term."""
    domains = []
    for domain in lot.domains:
        free = list(domain.free)[dice.random() < 0.15 :]
        cut = {}
        if parts and free and dice.random() < 0.6:
            device, places = free.pop(), ranges.WHOLE
            for share in dice.choices(sorted(UNITS_OF), k=dice.randint(0, 3)):
                if UNITS_OF[share] <= ranges.size_of(places):
                    mine, places = ranges.take(places, UNITS_OF[share])
                    lease = _lease(dice, len(leases), lot.name, {domain.name: (device,)})
                    leases.append(msgspec.structs.replace(lease, share=share, places=(mine,)))
            cut[device] = {PARTS: places}
        while free and dice.random() < 0.8:
            size = dice.choice([s for s in (1, 2, 4, 8) if s <= len(free)])
            seats = {domain.name: tuple(free.pop() for _ in range(size))}
            leases.append(_lease(dice, len(leases), lot.name, seats))
        domains.append(msgspec.structs.replace(domain, free=tuple(free), cut=cut))
    return msgspec.structs.replace(lot, domains=tuple(domains))


def _lease(dice: random.Random, n: int, lot: str, seats: dict[str, tuple[str, ...]]) -> Incumbent:
    return Incumbent(
        id=f"lease-{n}",
        agent=f"v{n}",
        owner=f"ov{n}",
        lot=lot,
        domain=next(iter(seats)),
        devices=next(iter(seats.values())),
        price=BASE * dice.randint(1, 12),
        weight=dice.choice(WEIGHTS),
        reserve=1,
        compensation=dice.randint(0, 60),
        tie=n,
    )


def _ask(dice: random.Random, n: int, agent: str, lots: list[Lot], parts: bool) -> Ask:
    lot = dice.choice(lots)
    largest = max(domain.size for domain in lot.domains)
    sizes = [size for size in (1, 1, 2, 4, 8) if size <= largest]
    share = dice.choice(["", *sorted(UNITS_OF)]) if parts and lot.leaves else ""
    price = BASE * dice.randint(1, 24)
    return Ask(
        id=f"bid-{n}",
        agent=agent,
        owner=f"o-{agent}",
        gpus=1 if share else dice.choice(sizes),
        share=share,
        blocks=2 if not share and dice.random() < 0.15 else 1,
        price=price,
        weight=dice.choice((1024, 1024, 1100, 1536)),
        tie=1000 + n,
        lot=lot.name,
        hold={name.name: price // 10 for name in lots},
    )


def _with_second(dice: random.Random, ask: Ask) -> Ask:
    if dice.random() < 0.5 or ask.blocks > 1:
        return ask
    other = "b" if ask.lot == "a" else "a"
    return msgspec.structs.replace(
        ask, also=(Ask(id="", agent="", owner="", gpus=1, price=ask.price, lot=other),)
    )


# What a round is judged by


def worth(party: Ask | Incumbent, devices: int) -> int:
    """Price × weight × units of a GPU."""
    return party.price * party.weight * devices * UNITS_OF.get(party.share, 2400)


def worth_before(given: RoundInput) -> int:
    return sum(worth(lease, len(lease.devices)) for lease in given.incumbents)


def worth_after(given: RoundInput, result: RoundResult) -> int:
    asks = {ask.id: ask for ask in given.asks}
    gone = {displaced.lease for displaced in result.displaced}
    stay = sum(worth(i, len(i.devices)) for i in given.incumbents if i.id not in gone)
    return stay + sum(worth(asks[won.ask], len(won.devices)) for won in result.won)


@lru_cache(maxsize=500_000)
def packs(free: tuple[int, ...], sizes: tuple[int, ...]) -> bool:
    """Return whether blocks can be placed, by trying every domain for each."""
    if not sizes:
        return True
    return any(
        room >= sizes[0]
        and packs(tuple(sorted((*free[:i], room - sizes[0], *free[i + 1 :]))), sizes[1:])
        for i, room in enumerate(free)
    )


def locked_out(given: RoundInput, result: RoundResult) -> Iterator[tuple[str, tuple[str, ...]]]:
    """
    Yield losing bids that outrank leases that are worth less than they, with those leases, whose
    leaving would let them in beside everybody who won. Of whole GPUs, in one lot or several.
    """
    asks = {ask.id: ask for ask in given.asks}
    gone = {displaced.lease for displaced in result.displaced}
    staying = [lease for lease in given.incumbents if lease.id not in gone]
    won = [block for w in result.won for block in _blocks(asks[w.ask])]
    # What a displaced lease left over is sold in that round only to bids that outrank it.
    closed = max((i.price * i.weight for i in given.incumbents if i.id in gone), default=0)
    base = max(lot.base for lot in given.lots)
    for loss in result.lost:
        ask = asks[loss.ask]
        key = ask.price * ask.weight
        if key <= closed or ask.price < base:
            continue
        able = [i for i in staying if i.price * i.weight < key and i.agent != ask.agent]
        mine = worth(ask, sum(size for _, size in _blocks(ask)))
        for leaving in _subsets(able):
            if sum(worth(lease, len(lease.devices)) for lease in leaving) >= mine:
                continue
            left = [lease for lease in staying if lease not in leaving]
            if _room_for(given, left, (*won, *_blocks(ask))):
                yield ask.id, tuple(lease.id for lease in leaving)


def _blocks(ask: Ask) -> tuple[tuple[str, int], ...]:
    """The lot and size of each block of a bid, rounded up as it is sold."""
    parts = ((need.lot, need.gpus) for need in (ask, *ask.also) for _ in range(need.blocks))
    return tuple((lot, next(s for s in (1, 2, 4, 8) if s >= gpus)) for lot, gpus in parts)


def _subsets(leases: list[Incumbent]) -> Iterator[tuple[Incumbent, ...]]:
    for n in range(len(leases) + 1):
        yield from itertools.combinations(leases, n)


def _room_for(
    given: RoundInput, staying: list[Incumbent], blocks: Iterable[tuple[str, int]]
) -> bool:
    blocks = list(blocks)
    for lot in given.lots:
        free = {domain.name: len(domain.free) for domain in lot.domains}
        for lease in given.incumbents:
            if lease.lot == lot.name and lease not in staying:
                free[lease.domain] += len(lease.devices)
        sizes = sorted((size for name, size in blocks if name == lot.name), reverse=True)
        if not packs(tuple(sorted(free.values())), tuple(sizes)):
            return False
    return True
