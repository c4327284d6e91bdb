"""Rounds in which every GPU is leased, and some bids are worth more than what runs."""

from __future__ import annotations

import random

from bidplane.core.market import Ask, Domain, Incumbent, Lot, RoundInput

_PRICE = 100_000  # the least, in micro-credits per GPU-hour
_AGENTS = 200
_LOT = "h100"


def contested_round(machines: int, *, waiting: int, displacing: int, seed: int) -> RoundInput:
    """
    Draw 8-GPU machines that are wholly leased at 10 to 20 times the least price. Of the bids,
    `waiting` offer less than any lease, and `displacing` more.
    """
    dice = random.Random(seed)
    leases: list[Incumbent] = []
    for machine in range(machines):
        free = [f"m{machine}/{gpu}" for gpu in range(8)]
        while free:
            size = dice.choice([size for size in (1, 2, 4, 8) if size <= len(free)])
            devices, free = tuple(free[:size]), free[size:]
            leases.append(
                _lease(len(leases), f"m{machine}", devices, _PRICE * dice.randint(10, 20))
            )
    prices = [_PRICE * dice.randint(1, 6) for _ in range(waiting)]
    prices += [_PRICE * dice.randint(40, 80) for _ in range(displacing)]
    lot = Lot(
        name=_LOT,
        base=_PRICE,
        posted=_PRICE,
        domains=tuple(Domain(name=f"m{n}", size=8, free=()) for n in range(machines)),
    )
    return RoundInput(
        at=0,
        lots=(lot,),
        asks=tuple(
            Ask(
                id=f"b{n}",
                agent=f"a{n % _AGENTS}",
                owner=f"o{n % _AGENTS}",
                gpus=dice.choice((1, 1, 2, 4, 8)),
                price=price,
                lot=_LOT,
                tie=n,
                hold={_LOT: 1},
            )
            for n, price in enumerate(prices)
        ),
        incumbents=tuple(leases),
        available={f"a{n}": 10**12 for n in range(_AGENTS)},
    )


def _lease(number: int, machine: str, devices: tuple[str, ...], price: int) -> Incumbent:
    return Incumbent(
        id=f"l{number}",
        agent=f"holder-{number}",
        owner=f"holder-{number}",
        lot=_LOT,
        domain=machine,
        devices=devices,
        price=price,
        weight=1280,
        reserve=_PRICE,
        compensation=_PRICE // 60,
        tie=number,
    )
