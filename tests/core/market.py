"""Words for tests of the market: small fleets, bids, and an oracle that tries everything."""

from __future__ import annotations

from functools import lru_cache

import msgspec
from hypothesis import strategies as st

from bidplane.core.chain import CHAIN, EIGHTHS, FRACTIONS, Block
from bidplane.core.market.clearing import Contestant
from bidplane.core.market.model import ONE, Ask, Domain, Incumbent, Lot, RoundInput

FLOOR = 100


def packs(free: dict[str, int], blocks: list[Block]) -> bool:
    """Whether the blocks fit, by trying every domain for every movable block."""
    left = dict(free)
    for block in blocks:
        if block.domain:
            left[block.domain] = left.get(block.domain, 0) - block.size
    if min(left.values(), default=0) < 0:
        return False
    return _packs(
        tuple(sorted(left.values())), tuple(sorted(b.size for b in blocks if not b.domain))
    )


@lru_cache(maxsize=100_000)
def _packs(free: tuple[int, ...], sizes: tuple[int, ...]) -> bool:
    if not sizes:
        return True
    size, rest = sizes[-1], sizes[:-1]
    return any(
        room >= size and _packs(tuple(sorted((*free[:i], room - size, *free[i + 1 :]))), rest)
        for i, room in enumerate(free)
    )


sizes = st.sampled_from(CHAIN)
# Few distinct prices, so that ties and equal keys happen often.
prices = st.integers(1, 12).map(lambda n: n * FLOOR)
weights = st.sampled_from([ONE, ONE, 1075, 1280, 3 * ONE])


@st.composite
def fleets(draw: st.DrawFn, most: int = 3) -> dict[str, int]:
    """Domains of 1 to 9 GPUs: unhealthy holes and odd machines included."""
    free = draw(st.lists(st.integers(1, 9), min_size=1, max_size=most))
    return {f"d{i}": n for i, n in enumerate(free)}


@st.composite
def contests(draw: st.DrawFn) -> tuple[dict[str, int], list[Contestant]]:
    """A fleet, and bids with running leases that compete for it; the leases fit."""
    free = draw(fleets())
    left = dict(free)
    field: list[Contestant] = []
    for i in range(draw(st.integers(0, 10))):
        size, weight, price = draw(sizes), draw(weights), draw(prices)
        domain = draw(st.sampled_from(["", "", *sorted(free)]))
        if domain:
            if left[domain] < size:
                continue
            left[domain] -= size
        tie = draw(st.integers(0, 2))
        reserve = FLOOR
        field.append(Contestant(f"c{i}", Block(size, domain), price, weight, tie, reserve))
    return free, field


_SHARES = [(4, "1/2"), (2, "1/4"), (1, "1/8")]


@st.composite
def rounds(draw: st.DrawFn) -> RoundInput:
    """One or two lots, with leases that run in them and bids from a few agents."""
    lots: list[Lot] = []
    incumbents: list[Incumbent] = []
    for lot in ("a", "b")[: draw(st.integers(1, 2))]:
        domains = []
        shared = draw(st.booleans())
        for name, size in draw(fleets()).items():
            free = [f"{lot}/{name}/{i}" for i in range(size)]
            for _ in range(draw(st.integers(0, 3))):
                block = draw(sizes)
                if block > len(free):
                    continue
                price = draw(prices)
                incumbents.append(
                    Incumbent(
                        id=f"lease-{len(incumbents)}",
                        agent=draw(st.sampled_from("xyz")),
                        owner=draw(st.sampled_from("pq")),
                        lot=lot,
                        domain=f"{lot}-{name}",
                        devices=tuple(free[:block]),
                        price=price,
                        weight=draw(weights),
                        reserve=draw(st.integers(1, price)),
                        compensation=draw(st.integers(0, 40)),
                    )
                )
                free = free[block:]
            kept = free[draw(st.integers(0, 1)) :]  # one may be held by a lease that drains
            cut = {}
            if shared and kept and draw(st.booleans()):
                device, kept = kept[0], kept[1:]
                left = list(range(8))
                for units, share in draw(st.lists(st.sampled_from(_SHARES), max_size=3)):
                    if units > len(left):
                        continue
                    price = draw(prices)
                    incumbents.append(
                        Incumbent(
                            id=f"lease-{len(incumbents)}",
                            agent=draw(st.sampled_from("xyz")),
                            owner=draw(st.sampled_from("pq")),
                            lot=lot,
                            domain=f"{lot}-{name}",
                            devices=(device,),
                            price=price,
                            weight=draw(weights),
                            reserve=draw(st.integers(1, price)),
                            compensation=draw(st.integers(0, 40)),
                            share=share,
                            places=(tuple(left[:units]),),
                        )
                    )
                    left = left[units:]
                # Some of it may be held by a lease that drains.
                cut[device] = {EIGHTHS: tuple(left[draw(st.integers(0, 2)) :])}
            domains.append(Domain(name=f"{lot}-{name}", size=size, free=tuple(kept), cut=cut))
        base = draw(st.integers(1, 4)) * FLOOR
        lots.append(
            Lot(
                name=lot,
                base=base,
                posted=base + draw(st.integers(0, 5)) * FLOOR,
                fund=draw(st.integers(0, 150)),
                domains=tuple(domains),
                leaves=FRACTIONS if shared else (),
                exact=draw(st.booleans()),
            )
        )
    names = [lot.name for lot in lots]
    asks = [
        Ask(
            id=f"bid-{i}",
            agent=draw(st.sampled_from("xyz")),
            owner=draw(st.sampled_from("pq")),
            gpus=draw(st.integers(1, 9)),
            price=draw(prices),
            lot=draw(st.sampled_from(["", *names, "nowhere"])),
            tie=draw(st.integers(10, 12)),
            hold={name: draw(st.integers(1, 60)) for name in names},
            blocks=draw(st.sampled_from([1, 1, 2])),
            spread=draw(st.sampled_from([False, False, True])),
            share=draw(st.sampled_from(["", "", "", "1/2", "1/2", "1/8"])),
        )
        for i in range(draw(st.integers(0, 8)))
    ]
    if len(asks) > 1 and draw(st.booleans()):
        last = asks.pop()
        instead = msgspec.structs.replace(
            last, id=asks[0].id, agent=asks[0].agent, owner=asks[0].owner
        )
        asks[0] = msgspec.structs.replace(asks[0], otherwise=(instead,))
    return RoundInput(
        at=0,
        lots=tuple(lots),
        asks=tuple(asks),
        incumbents=tuple(incumbents),
        available={agent: draw(st.integers(0, 300)) for agent in "xyz"},
    )
