"""Small contended markets, drawn by seed."""

from __future__ import annotations

import random

import msgspec

from bidplane.core.devices import ranges
from bidplane.core.devices.chain import FRACTIONS, PARTS
from bidplane.core.market import Ask, Domain, Incumbent, Lot, RoundInput

from .judge import UNITS_OF

BASE = 100
RICH = 10**12
FLEETS = ((8,), (4, 4), (8, 4), (4, 2, 2), (2, 2, 2), (3, 1), (5, 3), (8, 8))
WEIGHTS = (1024, 1280, 1280, 1536)


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
    if dice.random() < 0.5 or ask.blocks > 1 or ask.share:  # parts are not sold with others
        return ask
    other = "b" if ask.lot == "a" else "a"
    return msgspec.structs.replace(
        ask, also=(Ask(id="", agent="", owner="", gpus=1, price=ask.price, lot=other),)
    )
