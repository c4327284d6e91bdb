"""
Rounds in which one owner, eve, plays by the rules or against them, and what both bring.

A market is drawn by seed: machines with running leases, and bids of strangers. Everybody else
offers what a GPU-hour is worth to it. So the surplus of each party for an hour can be told: what
the GPUs that it gets are worth to it, less what it pays for them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from bidplane.core.market import Ask, Domain, Incumbent, Lot, RoundInput, clear_round

BASE = 100
MACHINES = 3
EVE = "eve"
RICH = 10**12


class Stage(NamedTuple):
    """A market without eve's bids, what she wants, and what a GPU-hour is worth to her."""

    market: RoundInput
    gpus: int
    value: int


# The bids that eve makes instead of an honest one, and the stage's leases, hers among them.
Attack = Callable[[Stage], tuple[Ask, ...]]


class Figures(NamedTuple):
    """An attack beside honest play in the same rounds, in percent of honest play's surplus."""

    gain: float  # on average over all rounds
    harm: float  # what everybody else lost, of their surplus
    pays: float  # the share of rounds in which it gains
    hindsight: float  # the gain of who knew which rounds these are

    def __str__(self) -> str:
        return (
            f"gain {self.gain:6.1f} %, others lose {self.harm:5.1f} %, pays in {self.pays:4.1f} %"
            f" of the rounds, with hindsight {self.hindsight:5.1f} %"
        )


def bid_of(
    id: str, gpus: int, price: int, *, agent: str = EVE, owner: str = EVE, tie: int = 500
) -> Ask:
    return Ask(
        id=id, agent=agent, owner=owner, gpus=gpus, price=price, tie=tie, lot="lot", hold={"lot": 1}
    )


def stage(seed: int, *, holds: bool = False) -> Stage:
    """Draw a market that is nearly full. `holds`: eve has a running lease, and asks for no more."""
    dice = random.Random(seed)
    leases: list[Incumbent] = []
    domains = []
    for machine in range(MACHINES):
        name = f"m{machine}"
        free = [f"{name}/{n}" for n in range(8)]
        while free and dice.random() < 0.85:
            size = dice.choice([n for n in (1, 1, 2, 4, 8) if n <= len(free)])
            seats, free = free[:size], free[size:]
            leases.append(_lease(f"lease-{len(leases)}", name, tuple(seats), _value(dice)))
        domains.append(Domain(name=name, size=8, free=tuple(free)))
    gpus, value = dice.choice([2, 4, 8]), _value(dice, least=4)
    if holds and leases:
        mine = dice.randrange(len(leases))
        leases[mine] = msgspec.structs.replace(leases[mine], agent=EVE, owner=EVE)
        gpus, value = leases[mine].gpus, leases[mine].price
    asks = tuple(
        bid_of(f"b{n}", dice.choice([1, 1, 2, 4, 8]), _value(dice), agent=f"a{n}", owner=f"o{n}")
        for n in range(dice.randint(4, 12))
    )
    lot = Lot(name="lot", base=BASE, posted=BASE, domains=tuple(domains))
    return Stage(RoundInput(at=0, lots=(lot,), asks=asks, incumbents=tuple(leases)), gpus, value)


def _value(dice: random.Random, least: int = 1) -> int:
    return BASE * dice.randint(least, 20) + dice.randint(0, 99)


def _lease(id: str, domain: str, devices: tuple[str, ...], price: int) -> Incumbent:
    return Incumbent(
        id=id,
        agent=f"agent-{id}",
        owner=f"owner-{id}",
        lot="lot",
        domain=domain,
        devices=devices,
        price=price,
        weight=1280,
        reserve=1,
        compensation=price * len(devices) * 60 // 3600,
    )


def surplus(given: Stage, bids: tuple[Ask, ...], *, whole: bool) -> tuple[int, int]:
    """
    What an hour of the round's outcome brings eve, and everybody else. `whole`: GPUs are worth
    nothing to her unless she gets as many as she wants.
    """
    asks = (*given.market.asks, *bids)
    available = {ask.agent: RICH for ask in asks}
    outcome = clear_round(msgspec.structs.replace(given.market, asks=asks, available=available))
    honest = {ask.id: ask.price for ask in given.market.asks}
    eves = {ask.id for ask in bids}
    leases = {lease.id: lease for lease in given.market.incumbents}
    hers, others, use = 0, 0, 0
    for won in outcome.won:
        if won.ask in eves:
            use += won.gpus
            hers -= won.price * won.gpus + won.minimum
        else:
            others += (honest[won.ask] - won.price) * won.gpus - won.minimum
    for kept in outcome.kept:
        lease = leases[kept.lease]
        if lease.agent == EVE:
            hers += (lease.price - kept.price) * lease.gpus
        else:
            others += (lease.price - kept.price) * lease.gpus
    for displaced in outcome.displaced:
        if leases[displaced.lease].agent == EVE:
            hers += displaced.compensation
        else:
            others += displaced.compensation
    # More GPUs than she wants are worth nothing to her. Who holds wants no more.
    wanted = 0 if any(lease.agent == EVE for lease in leases.values()) else given.gpus
    if whole and use < wanted:
        wanted = 0
    return hers + min(use, wanted) * given.value, others


def measure(
    attack: Attack, rounds: int, *, honest: Attack, holds: bool = False, whole: bool = False
) -> Figures:
    """Play as many rounds both ways."""
    before = after = others_before = others_after = ahead = better = 0
    for seed in range(rounds):
        given = stage(seed, holds=holds)
        mine, theirs = surplus(given, honest(given), whole=whole)
        instead, theirs_then = surplus(given, attack(given), whole=whole)
        before, after = before + mine, after + instead
        others_before, others_after = others_before + theirs, others_after + theirs_then
        ahead += instead > mine
        better += max(instead - mine, 0)
    return Figures(
        gain=100 * (after - before) / before,
        harm=100 * (others_before - others_after) / others_before,
        pays=100 * ahead / rounds,
        hindsight=100 * better / before,
    )
