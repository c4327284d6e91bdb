"""
Clearing beside what is known to be right: the exact optimum, and brute force.

The optimum is HiGHS's, over the same counters; that counters say what trying every
packing would say is `test_room`'s business.
"""

from __future__ import annotations

import random

import highspy
import numpy as np
import pytest

from bidplane.api.money import GPU_WEIGHT
from bidplane.core.devices.chain import CHAIN, Block, Chain, weight_of
from bidplane.core.market.clearing.capacity import Room
from bidplane.core.market.clearing.capacity import need as needs
from bidplane.core.market.clearing.contestant import Contestant
from bidplane.core.market.clearing.contested import clear
from bidplane.core.market.model import ONE

from .contests import CHAINS

FLOOR = 300_000


def instance(seed: int, chain: Chain) -> tuple[Room, list[Contestant]]:
    """
    At least 200 bids for a fleet of machines as large as its largest blocks, partly taken; one to
    nine times its size.
    """
    dice = random.Random(seed)
    machines = dice.choice([8, 16, 32, 50])
    taken = dice.choice([0.0, 0.25, 0.5])
    free = {f"d{i}": sum(dice.random() >= taken for _ in range(chain[0])) for i in range(machines)}
    bids = [
        Contestant(
            f"b{i}",
            Block(dice.choices(chain, (10, 20, 25, 45)[-len(chain) :])[0]),
            int(1_000_000 * dice.lognormvariate(0.6, 0.7)) + FLOOR,
            ONE,
            i,
            FLOOR,
        )
        for i in range(dice.choice([200, 300, 400]))
    ]
    return Room(free, chain=chain), bids


def optimum_in(room: Room, bids: list[Contestant]) -> float:
    """The most value that any set of movable bids that fits has."""
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("mip_rel_gap", 1e-7)
    need = [needs(b.block, room.leaves, room.chain) for b in bids]
    spare = room.spare
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(bids), len(spare)
    lp.col_cost_ = np.array(
        [b.price * weight_of(b.block, room.leaves) / (GPU_WEIGHT * 1e6) for b in bids]
    )
    lp.col_lower_, lp.col_upper_ = np.zeros(len(bids)), np.ones(len(bids))
    lp.row_lower_ = np.full(len(spare), -highspy.kHighsInf)
    lp.row_upper_ = np.array(spare, float)
    entries = [(level, n) for row in need for level, n in enumerate(row) if n]
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = np.cumsum([0, *(sum(1 for n in row if n) for row in need)])
    lp.a_matrix_.index_ = np.array([level for level, _ in entries])
    lp.a_matrix_.value_ = np.array([n for _, n in entries], float)
    lp.integrality_ = [highspy.HighsVarType.kInteger] * len(bids)
    lp.sense_ = highspy.ObjSense.kMaximize
    solver.passModel(lp)
    solver.run()
    assert solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return float(solver.getObjectiveValue())


def share_of_optimum(seed: int, chain: Chain) -> float:
    room, bids = instance(seed, chain)
    value = sum(c.price * c.block.size for c in clear(room, bids).accepted) / 1e6
    best = optimum_in(room, bids)
    assert value <= best * (1 + 1e-6), f"seed {seed}: better than the best"
    return value / best


def check_welfare(seeds: range, chain: Chain) -> None:
    shares = {seed: share_of_optimum(seed, chain) for seed in seeds}
    worst = min(shares, key=lambda seed: shares[seed])
    mean = sum(shares.values()) / len(shares)
    print(f"{len(shares)} instances: mean {mean:.4f}, worst {shares[worst]:.4f} (seed {worst})")
    assert mean >= 0.995
    assert shares[worst] >= 0.95, f"seed {worst}"


@pytest.mark.parametrize("chain", [CHAIN, (3, 1), (6, 3, 1), (12, 4, 1)], ids=str)
def test_the_value_sold_is_near_the_optimum(chain: Chain) -> None:
    check_welfare(range(60 if chain == CHAIN else 20), chain)


@pytest.mark.slow
@pytest.mark.parametrize("chain", [CHAIN, (6, 3, 1)], ids=str)
def test_the_value_sold_is_near_the_optimum_hundreds_of_times(chain: Chain) -> None:
    check_welfare(range(1000, 1500), chain)


def small(dice: random.Random, bids: int) -> tuple[Room, list[Contestant]]:
    chain = dice.choice([CHAIN, *CHAINS])
    free = {f"d{i}": dice.randint(1, 9) for i in range(dice.randint(1, 4))}
    field = [
        Contestant(
            f"b{i:02}",
            Block(dice.choice(chain)),
            dice.randint(10, 60),
            dice.choice([ONE, ONE, 1280]),
            dice.randint(0, 3),
            10,
        )
        for i in range(bids)
    ]
    return Room(free, chain=chain), field


def wins(room: Room, others: list[Contestant], one: Contestant, price: int) -> bool:
    tried = one._replace(price=price)
    return tried in clear(room, [*others, tried]).accepted


def test_critical_prices_are_what_trying_every_price_finds() -> None:
    """Every price from the reserve up, for every winner: the first that wins is the price."""
    dice, tried = random.Random(1), 0
    for _ in range(60):
        room, field = small(dice, 14)
        outcome = clear(room, field)
        for winner in outcome.accepted:
            others = [c for c in field if c.id != winner.id]
            least = next(p for p in range(10, 61) if wins(room, others, winner, p))
            assert outcome.critical_price(winner) == least
            tried += 1
    assert tried > 250


def utility(room: Room, others: list[Contestant], truth: Contestant, bid: Contestant) -> int:
    """What the bidder gains by `bid` if `truth` is what it needs and what that is worth."""
    outcome = clear(room, [*others, bid])
    if bid not in outcome.accepted:
        return 0
    worth = truth.price * truth.block.size if bid.block.size >= truth.block.size else 0
    return worth - outcome.critical_price(bid) * bid.block.size


def test_ten_thousand_lies_of_a_single_bid_and_none_pays() -> None:
    dice, lies, won_by_lie = random.Random(7), 0, 0
    while lies < 10_000:
        room, field = small(dice, dice.randint(4, 20))
        truth, others = field[0]._replace(weight=ONE), field[1:]
        honest = utility(room, others, truth, truth)
        assert honest >= 0
        for _ in range(20):
            price = dice.randint(10, 90)
            block = truth.block if dice.random() < 0.5 else Block(dice.choice(room.chain))
            lie = truth._replace(price=price, block=block)
            gain = utility(room, others, truth, lie)
            assert gain <= honest, (room, others, truth, lie)
            won_by_lie += gain != honest
            lies += 1
    assert won_by_lie > 1000, "most lies changed nothing: this shows too little"
