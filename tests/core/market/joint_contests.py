"""Words for tests of lots that are needed together: machines with GPUs of several lots."""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st

from bidplane.core.devices.chain import Block
from bidplane.core.market.clearing.capacity import Room
from bidplane.core.market.clearing.contestant import Contestant
from bidplane.core.market.joint.capacity import Rooms, in_lots, joint
from bidplane.core.market.model import Ask, Domain, Incumbent, Lot, RoundInput

from .contests import FLOOR, fleets, packs, prices, weights

Fleets = dict[str, dict[str, int]]  # by lot and domain, GPUs
Contest = tuple[Fleets, list[Contestant]]
CHAINS = {"a": (8, 4, 2, 1), "b": (3, 1), "c": (6, 2, 1)}  # each lot sells in blocks of its own


def rooms(free: Fleets) -> Rooms:
    return Rooms({lot: Room(domains, chain=CHAINS[lot]) for lot, domains in free.items()})


def packs_all(free: Fleets, field: list[Contestant]) -> bool:
    """Whether all of them fit, by trying every domain of every lot for every movable block."""
    return all(
        packs(domains, [part for c in field for part in plain(c, lot)])
        for lot, domains in free.items()
    )


def plain(contestant: Contestant, lot: str) -> list[Block]:
    """What it needs there, as blocks that are each in one domain."""
    for name, block in in_lots(contestant.block):
        if name != lot:
            continue
        if block.seats:
            return [Block(n, domain) for domain, n in block.seats]
        return [Block(block.size, block.domain)] * block.count + [Block(n) for n in block.rest]
    return []


@st.composite
def contests(draw: st.DrawFn) -> Contest:
    """Two or three lots; some contestants need one of them, some several; the running ones fit."""
    names = ("a", "b", "c")[: draw(st.integers(2, 3))]
    free = {lot: draw(fleets(most=2)) for lot in names}
    left = {(lot, d): n for lot, domains in free.items() for d, n in domains.items()}
    field: list[Contestant] = []
    for i in range(draw(st.integers(0, 9))):
        needs: dict[str, Block] = {}
        runs = draw(st.booleans())
        for lot in draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True)):
            size = draw(st.sampled_from(CHAINS[lot]))
            if runs or draw(st.integers(0, 3)) == 0:
                domain = draw(st.sampled_from(sorted(free[lot])))
                if runs and left[lot, domain] < size:
                    continue
                if runs:
                    left[lot, domain] -= size
                needs[lot] = Block(0, seats=((domain, size),))
            else:
                needs[lot] = Block(size, count=draw(st.sampled_from([1, 1, 2])))
        if needs:
            tie = draw(st.integers(0, 2))
            field.append(Contestant(f"c{i}", joint(needs), draw(prices), draw(weights), tie, FLOOR))
    return free, field


@st.composite
def rounds(draw: st.DrawFn) -> RoundInput:
    """Machines with GPUs of two or three lots, leases that have some of several, and bids."""
    names = ("a", "b", "c")[: draw(st.integers(2, 3))]
    nodes = ("m0", "m1", "m2")[: draw(st.integers(1, 3))]
    size = {(lot, node): draw(st.integers(0, 5)) for lot in names for node in nodes}
    free = {at: [f"{at[1]}/{at[0]}{i}" for i in range(n)] for at, n in size.items()}
    low = st.integers(1, 6).map(lambda n: n * FLOOR)  # so that they are often displaced
    incumbents: list[Incumbent] = []
    for n in range(draw(st.integers(0, 6))):
        parts = []
        price, weight, node = draw(low), draw(weights), draw(st.sampled_from(nodes))
        agent, owner = draw(st.sampled_from("xyz")), draw(st.sampled_from("pq"))
        for lot in draw(st.sampled_from([names[:2], names[-2:], names[:1]])):
            gpus = draw(st.integers(1, 2))
            if gpus > len(free[lot, node]):
                continue
            devices, free[lot, node] = free[lot, node][:gpus], free[lot, node][gpus:]
            parts.append(
                Incumbent(
                    id=f"lease-{n}",
                    agent=agent,
                    owner=owner,
                    lot=lot,
                    domain=node,
                    devices=tuple(devices),
                    price=price,
                    weight=weight,
                    reserve=draw(st.integers(1, price)),
                    compensation=draw(st.integers(0, 40)),
                    movable=draw(st.booleans()),
                )
            )
        if len(parts) > 1:
            parts = [msgspec.structs.replace(part, movable=False) for part in parts]
        if parts:
            incumbents.append(msgspec.structs.replace(parts[0], also=tuple(parts[1:])))
    exact = draw(st.sampled_from([False, False, True]))
    lots = [
        Lot(
            name=lot,
            base=(base := draw(st.integers(1, 4)) * FLOOR),
            posted=base + draw(st.integers(0, 5)) * FLOOR,
            domains=tuple(
                Domain(
                    name=node,
                    node=node,
                    size=size[lot, node],
                    # One may be held by a lease that drains.
                    free=tuple(free[lot, node][draw(st.integers(0, 1)) :]),
                )
                for node in nodes
            ),
            exact=exact,
        )
        for lot in names
    ]

    def need(id: str, agent: str, owner: str, **more: object) -> Ask:
        return Ask(
            id=id,
            agent=agent,
            owner=owner,
            gpus=draw(st.sampled_from([1, 1, 2, 3])),
            lot=draw(st.sampled_from(["", *names])),
            spread=draw(st.sampled_from([False, False, True])),
            **more,  # type: ignore[arg-type]
        )

    asks = []
    for i in range(draw(st.integers(1, 7))):
        id, agent, owner = f"bid-{i}", draw(st.sampled_from("xyz")), draw(st.sampled_from("pq"))
        price, hold = draw(prices), draw(st.sampled_from([150, 60, 5]))
        common = {
            "price": price,
            "tie": draw(st.integers(10, 12)),
            "hold": dict.fromkeys(names, hold),
            "blocks": draw(st.sampled_from([1, 1, 2])),
        }
        also = tuple(need(id, agent, owner, price=price) for _ in range(draw(st.integers(0, 2))))
        one_node = draw(st.booleans()) if also else draw(st.sampled_from([False, False, True]))
        # Some machines have what it needs beside, for so many of its sets; or it needs nothing.
        able = st.dictionaries(st.sampled_from(nodes), st.integers(1, 2), min_size=1)
        common["machines"] = draw(st.none() | able) if one_node else None
        asks.append(need(id, agent, owner, also=also, one_node=one_node, **common))
    return RoundInput(
        at=0,
        lots=tuple(lots),
        asks=tuple(asks),
        incumbents=tuple(incumbents),
        available={agent: draw(st.sampled_from([600, 300, 50])) for agent in "xyz"},
    )
