"""
A round of the market: clear, price and place, against an exact solver and a queue.

Time is this thread's CPU time, the least of several runs, so that other processes on the machine
matter little.
"""

from __future__ import annotations

import gc
import math
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import highspy
import msgspec
import numpy as np

from bidplane.api.lease import DeviceRef
from bidplane.api.shape import MOST_BLOCKS
from bidplane.bench.report import (
    BenchReport,
    Result,
    at_least,
    at_most,
    less,
    more,
    ratio_above,
    say,
)
from bidplane.bench.support.contested import contested_round
from bidplane.bench.support.standing import StandingRounds
from bidplane.core.devices.bulkplacement import seats
from bidplane.core.devices.chain import CHAIN, Block
from bidplane.core.market import Ask, Domain, Lot, RoundInput, clear_round
from bidplane.core.market.clearing.capacity import need
from bidplane.core.market.clearing.columns import Book, ColumnOutcome, Ints, holds
from bidplane.core.market.model import ONE
from bidplane.exchange.engine import Engine
from bidplane.exchange.instantsales import NoSale
from bidplane.exchange.round.devices import DeviceView
from bidplane.exchange.snapshot import AgentView, HostSnapshot, PoolView
from bidplane.ledger import Ledger
from bidplane.ledger.leases import Terms
from bidplane.ledger.records import wallet_of
from bidplane.runtime.interpreter import collect_rarely

T = TypeVar("T")

AGENTS = 1000  # whose bids and leases they are
FLOOR = 300_000
SIZES = {1000: 10_000, 10_000: 100_000, 100_000: 1_000_000}  # bids, and GPUs they bid for
AIMS_MS = {10_000: 20.0, 100_000: 250.0}
ROUND_AIMS_MS = {10_000: 100.0, 100_000: 1000.0}  # of objects, with its commit
JOINT_AIMS_MS = {10_000: 500.0}  # a tenth of the bids needs two lots


class MarketInstance(NamedTuple):
    """A generated market: free GPUs and bids."""

    free: Ints  # by 8-GPU machine
    book: Book
    sizes: Ints  # of each bid's block

    @property
    def value(self) -> Ints:
        """The value of each bid, in micro-credits an hour."""
        return self.book.price * self.sizes


def instance(
    bids: int, gpus: int, *, load: float, seed: int = 1, whole: bool = False
) -> MarketInstance:
    """
    Draw bids for `load` times the free GPUs; the rest of the machines is taken. With `whole`,
    machines are entirely free or taken: then large blocks compete with many small ones.
    """
    generator = np.random.default_rng(seed)
    sizes = generator.choice(CHAIN, bids, p=[0.1, 0.2, 0.25, 0.45]).astype(np.int64)
    share = min(1.0, sizes.sum() / load / gpus)
    free = generator.binomial(1 if whole else 8, share, gpus // 8).astype(np.int64) * (
        8 if whole else 1
    )
    book = Book(
        price=(1e6 * generator.lognormal(0.6, 0.7, bids)).astype(np.int64) + FLOOR,
        weight=generator.choice([ONE, 1100, 1300], bids).astype(np.int64),
        tie=np.arange(bids, dtype=np.uint64) + np.uint64(1 << 32),
        reserve=np.full(bids, FLOOR, np.int64),
        kind=np.array([CHAIN.index(size) for size in sizes.tolist()], np.int64),
        needs=np.array([need(Block(size)) for size in CHAIN], np.int64),
        ids=[str(i) for i in range(bids)],
        agent=generator.integers(0, AGENTS, bids),
    )
    return MarketInstance(free, book, sizes)


def gangs(bids: int, *, load: float, seed: int = 1) -> MarketInstance:
    """Draw bids for one to 128 blocks, larger ones being rarer: hundreds of distinct needs."""
    generator = np.random.default_rng(seed)
    plain = instance(bids, 8 * bids, load=1.0, seed=seed)
    counts = np.minimum(generator.zipf(1.3, bids), MOST_BLOCKS)
    shapes, kind = np.unique(np.stack((plain.sizes, counts), axis=1), axis=0, return_inverse=True)
    needs = [need(Block(size, count=count)) for size, count in shapes.tolist()]
    gpus = plain.sizes * counts
    free = np.full(int(gpus.sum() / load / 8), 8, np.int64)
    book = msgspec.structs.replace(
        plain.book, kind=kind.reshape(-1).astype(np.int64), needs=np.array(needs, np.int64)
    )
    return MarketInstance(free, book, gpus)


def round_of(case: MarketInstance) -> ColumnOutcome:
    """Run the measured work: find the winners, their prices, and the place of each bid's block."""
    outcome = ColumnOutcome(case.free, (), case.book)
    outcome.prices()
    seats(case.free.copy(), case.sizes[outcome.order[outcome.winners]])
    return outcome


def run(*, quick: bool, data: Path | None) -> BenchReport:
    times, growth = _times(repeat=3 if quick else 9)
    results = [*times, growth, *_displacing(quick), *_against_highs(quick), *_against_a_queue()]
    results += _gangs(quick) + _whole_rounds(quick) + _standing(quick)
    results += _instant(200 if quick else 1000)
    shrank = " --quick: fewer repetitions, and fewer seeds beside HiGHS." if quick else ""
    return BenchReport(
        name="market",
        how="CPU of one thread, least of several runs; bids for 1.5 times what is free, and for"
        " 4 times; 8-GPU machines, one lot, seeded."
        f" HiGHS {_solver().version()} on the same counters.{shrank}",
        results=tuple(results),
    )


def _times(repeat: int) -> tuple[list[Result], Result]:
    """The time of a round at several sizes, and how it grows."""
    results, seconds = [], {}
    for load in (1.5, 4.0):
        for bids, gpus in SIZES.items():
            case = instance(bids, gpus, load=load)
            seconds[bids, load], _ = least_cpu_seconds(partial(round_of, case), repeat)
            aim = at_most(AIMS_MS[bids]) if bids in AIMS_MS else None
            name = f"clear + price + place, {bids:,} bids, {gpus:,} GPUs, load {load:g}×"
            results.append(less(name, "ms CPU", 1000 * seconds[bids, load], aim=aim))
            say(f"{name}: {1000 * seconds[bids, load]:.1f} ms")
    factor = seconds[100_000, 4.0] / seconds[10_000, 4.0]
    linearithmic = 10 * math.log(100_000) / math.log(10_000)
    growth = less("growth, 10k to 100k bids", "× n log n", factor / linearithmic, aim=at_most(1.0))
    return results, growth


def _displacing(quick: bool) -> list[Result]:
    """The time of rounds in which bids displace running leases, and every price is found."""
    results = []
    machines = 60 if quick else 250
    for displacing in (1, 100) if quick else (1, 100, 1000):
        round_input = contested_round(machines, waiting=1000, displacing=displacing, seed=1)
        seconds, outcome = least_cpu_seconds(partial(clear_round, round_input), 1 if quick else 2)
        leases = len(round_input.incumbents)
        name = (
            f"clear_round, {leases:,} leases, 1,000 bids that wait and {displacing:,} that"
            f" displace: {len(outcome.displaced):,} displaced"
        )
        results.append(less(name, "ms CPU", 1000 * seconds))
        say(f"{name}: {1000 * seconds:.0f} ms")
    return results


def _gangs(quick: bool) -> list[Result]:
    """The cost of many distinct needs: the price of a winner takes one search per need."""
    results = []
    for bids in (10_000, 100_000):
        case = gangs(bids, load=4.0)
        seconds, _ = least_cpu_seconds(partial(_clear_and_price, case), 2 if quick else 4)
        name = f"clear + price, {bids:,} bids for gangs, {len(case.book.needs)} distinct needs"
        results.append(less(name, "ms CPU", 1000 * seconds, aim=at_most(AIMS_MS[bids])))
    return results


def _clear_and_price(case: MarketInstance) -> ColumnOutcome:
    """Find the winners and their prices."""
    outcome = ColumnOutcome(case.free, (), case.book)
    outcome.prices()
    return outcome


def _against_highs(quick: bool) -> list[Result]:
    """The value sold relative to the optimum, and how many bids HiGHS solves in our time."""
    shares = []
    for seed in range(10 if quick else 60):
        case = instance(400, 800, load=4.0, seed=seed, whole=True)
        case = case._replace(book=_without_rank_weights(case.book))
        best, _ = optimum(case, seconds=20)
        shares.append(sold(case, ColumnOutcome(case.free, (), case.book)) / best)
    case = instance(100_000, 1_000_000, load=4.0)
    budget, _ = least_cpu_seconds(partial(round_of, case), 2)
    solved = 0
    for bids in (250, 500, 1000, 2000, 4000, 8000, 16_000, 32_000, 64_000):
        small = instance(bids, 10 * bids, load=4.0, whole=True)
        before = time.thread_time()
        _, proven = optimum(small, seconds=10 * budget)
        if not proven or time.thread_time() - before > budget:
            break
        solved = bids
    return [
        more("value / optimum, 400 bids, mean", "", float(np.mean(shares)), aim=at_least(0.995)),
        more("value / optimum, 400 bids, worst", "", min(shares), aim=at_least(0.95)),
        more(
            f"bids cleared in {1000 * budget:.0f} ms",
            "bids",
            100_000,
            peer=solved,
            peer_name="HiGHS, proven optimal",
            aim=ratio_above(1.0),
        ),
    ]


def _against_a_queue() -> list[Result]:
    """The value sold, compared with a queue's."""
    case = instance(10_000, 100_000, load=4.0)
    case = case._replace(book=_without_rank_weights(case.book))
    market_value = sold(case, ColumnOutcome(case.free, (), case.book))
    book = case.book
    queue = ColumnOutcome(
        case.free,
        (),
        msgspec.structs.replace(book, price=np.ones_like(book.price)),
    )
    queue_value = sold(case, queue)
    return [
        more(
            "value sold, 10,000 bids, load 4×", "credits/hour", market_value / 1e6,
            peer=queue_value / 1e6, peer_name="FIFO with skip", aim=ratio_above(1.0),
        )
    ]  # fmt: skip


def _whole_rounds(quick: bool) -> list[Result]:
    """Rounds from objects to objects, with admission, routing, explanations and device names."""
    results = []
    for bids in (1000, 10_000):
        case = instance(bids, SIZES[bids], load=4.0)
        round_input = _round_input(case)
        seconds, _ = least_cpu_seconds(partial(clear_round, round_input), 1 if quick else 3)
        results.append(
            less(f"clear_round with {bids:,} bids, as objects", "ms CPU", 1000 * seconds)
        )
        aim = at_most(JOINT_AIMS_MS[bids]) if bids in JOINT_AIMS_MS else None
        seconds, _ = least_cpu_seconds(
            partial(clear_round, _with_second_pool(round_input)), 1 if quick else 3
        )
        metric = f"the same, {bids:,} bids of which a tenth needs a second pool in the same machine"
        results.append(less(metric, "ms CPU", 1000 * seconds, aim=aim))
    return results


def _standing(quick: bool) -> list[Result]:
    """
    The time of whole rounds in which bids stand and nothing changes, with the commit. Garbage is
    collected as in the exchange's process.
    """
    results, collect_after = [], gc.get_threshold()
    collect_rarely()
    for waiting in (1000, 10_000) if quick else (1000, 10_000, 100_000):
        with tempfile.TemporaryDirectory() as folder:
            rounds = StandingRounds(Path(folder), machines=250, waiting=waiting, seed=1)
            seconds, _ = least_cpu_seconds(rounds.run, 2 if quick else 3)
            rounds.ledger.close()
        name = f"a round with its commit, 250 leases, {waiting:,} standing bids"
        aim = at_most(ROUND_AIMS_MS[waiting]) if waiting in ROUND_AIMS_MS else None
        results.append(less(name, "ms CPU", 1000 * seconds, aim=aim))
        say(f"{name}: {1000 * seconds:.0f} ms")
    gc.set_threshold(*collect_after)
    return results


def _with_second_pool(round_input: RoundInput) -> RoundInput:
    """
    The same machines with a GPU of another kind in each, which every tenth bid needs as well.
    """
    (lot,) = round_input.lots
    domains = tuple(
        msgspec.structs.replace(domain, node=domain.name, size=1, free=(f"{domain.name}/other",))
        for domain in lot.domains
    )
    first = tuple(msgspec.structs.replace(domain, node=domain.name) for domain in lot.domains)
    second_lot = msgspec.structs.replace(lot, name="other", domains=domains)
    asks = tuple(
        msgspec.structs.replace(
            ask,
            also=(msgspec.structs.replace(ask, lot=second_lot.name, gpus=1, hold={}),),
            one_node=True,
        )
        if n % 10 == 0
        else ask
        for n, ask in enumerate(round_input.asks)
    )
    lots = (msgspec.structs.replace(lot, domains=first), second_lot)
    return msgspec.structs.replace(round_input, lots=lots, asks=asks)


def _instant(orders: int) -> list[Result]:
    """Instant orders one after the other, on a ledger on disk with and without syncing."""
    results = []
    for durable in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            wall, cpu = _orders(Path(folder) / "ledger.db", orders, durable=durable)
        kind = "synced" if durable else "not synced"
        p99 = sorted(wall)[len(wall) * 99 // 100]
        results += [
            more(f"instant orders, ledger {kind}", "orders/s", len(wall) / sum(wall)),
            less(f"instant order, ledger {kind}, p99", "ms", 1000 * p99),
        ]
        if not durable:
            middle = sorted(cpu)[len(cpu) // 2]
            results.append(less("instant order, median", "ms CPU", 1000 * middle, aim=at_most(1.0)))
    return results


def _orders(path: Path, count: int, *, durable: bool) -> tuple[list[float], list[float]]:
    """Place that many instant orders; return the wall and CPU seconds of each."""
    ledger = Ledger.open(path, durable=durable)
    engine = Engine(ledger)
    nodes = -(-count // 8) * 20  # the float is a twentieth
    world = HostSnapshot(
        agents=(AgentView(name="a", uid="u", owner="o", refill=10**12, cap=10**12),),
        pools=(
            PoolView(
                name="h100",
                product="H100",
                floor=FLOOR,
                target_percent=92,
                terms=Terms(30, 30, 60),
                float_percent=5,
            ),
        ),
        devices=tuple(
            DeviceView(
                device=DeviceRef(node=f"n{n}", driver="d", pool=f"n{n}", name=f"gpu-{i}"),
                product="H100",
                domain=f"n{n}",
            )
            for n in range(nodes)
            for i in range(8)
        ),
    )
    engine.run_round(world, 1.0)
    wallet = ledger.account(wallet_of("u"))
    assert wallet is not None
    wall, cpu = [], []
    for n in range(count):
        started, cpu_before = time.perf_counter(), time.thread_time()
        sold = engine.desk.buy(wallet, pool="h100", max_price=100 * FLOOR, key=str(n), now=1000)
        wall.append(time.perf_counter() - started)
        cpu.append(time.thread_time() - cpu_before)
        if isinstance(sold, NoSale):
            raise RuntimeError(sold.message)
    ledger.close()
    return wall, cpu


def _round_input(case: MarketInstance) -> RoundInput:
    """The instance as the objects of a round."""
    domains = tuple(
        Domain(name=f"m{i:06}", size=8, free=tuple(f"m{i:06}/{n}" for n in range(free)))
        for i, free in enumerate(case.free.tolist())
    )
    rows = zip(case.book.price.tolist(), case.sizes.tolist(), case.book.tie.tolist(), strict=True)
    return RoundInput(
        at=0,
        lots=(Lot(name="h100", base=FLOOR, posted=FLOOR, domains=domains),),
        asks=tuple(
            Ask(
                id=f"b{i:06}", agent=f"a{i % 100}", owner=f"a{i % 100}", gpus=size,
                price=price, tie=tie, lot="h100", hold={"h100": 1},
            )
            for i, (price, size, tie) in enumerate(rows)
        ),
        available={f"a{i}": 10**9 for i in range(100)},
    )  # fmt: skip


def optimum(case: MarketInstance, *, seconds: float) -> tuple[float, bool]:
    """
    The highest value of any set of bids that fits, in micro-credits an hour, and True if that is
    proven.
    """
    solver = _solver()
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("mip_rel_gap", 1e-6)
    solver.setOptionValue("time_limit", seconds)
    bids, needs = len(case.sizes), case.book.needs[case.book.kind]
    row, level = np.nonzero(needs)
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = bids, len(CHAIN)
    lp.col_cost_ = case.value / 1e6
    lp.col_lower_, lp.col_upper_ = np.zeros(bids), np.ones(bids)
    lp.row_lower_ = np.full(len(CHAIN), -highspy.kHighsInf)
    lp.row_upper_ = holds(case.free, ()).sum(axis=0).astype(float)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = np.searchsorted(row, np.arange(bids + 1))
    lp.a_matrix_.index_, lp.a_matrix_.value_ = level, needs[row, level].astype(float)
    lp.integrality_ = [highspy.HighsVarType.kInteger] * bids
    lp.sense_ = highspy.ObjSense.kMaximize
    solver.passModel(lp)
    solver.run()
    proven = solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return 1e6 * float(solver.getObjectiveValue()), proven


def _solver() -> Any:
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    return solver


def sold(case: MarketInstance, outcome: ColumnOutcome) -> float:
    """The value that the outcome sells."""
    return float(case.value[outcome.order[outcome.winners]].sum())


def _without_rank_weights(book: Book) -> Book:
    """The same bids without rank weights: then clearing maximises value alone."""
    return msgspec.structs.replace(book, weight=np.full_like(book.weight, ONE))


def least_cpu_seconds(work: Callable[[], T], repeat: int) -> tuple[float, T]:
    """The least CPU seconds of several runs, and the work's result."""
    best, result = float("inf"), None
    for _ in range(repeat):
        before = time.thread_time()
        result = work()
        best = min(best, time.thread_time() - before)
    assert result is not None
    return best, result
