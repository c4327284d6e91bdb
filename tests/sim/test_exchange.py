"""The exchange under the virtual clock: its own rounds, wallets and leases."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidplane.api.lease import Phase
from bidplane.ledger.records import REVENUE, TransferKind, fund_of
from bidplane.ledger.verify import verify_store
from bidplane.sim.bidders import Rule, by_attained_service, by_remaining_work, by_worth
from bidplane.sim.cluster import Failure
from bidplane.sim.engine import Costs, SimulationOutcome, Task, simulate
from bidplane.sim.exchange import FLOOR, RULES, MarketRules, SimulatedExchange
from bidplane.sim.metrics import measure
from bidplane.sim.policies import find
from bidplane.sim.workload import Job, generate, with_values

NODES = (8, 8, 8, 8)


def job(name: str, arrives: int, gpus: int, seconds: int, **more: object) -> Job:
    return Job(name=name, arrives=arrives, gpus=gpus, seconds=seconds, **more)  # type: ignore[arg-type]


def ends(outcome: SimulationOutcome) -> dict[str, int]:
    return {task.job.name: task.ended for task in outcome.tasks}


def kept(rule: Rule, market: MarketRules | None = None, *, skip: bool = True) -> SimulatedExchange:
    return SimulatedExchange("kept", rule, market, history=True, skip=skip)


def lives(outcome: SimulationOutcome) -> list[tuple[str, int, list[tuple[int, int]]]]:
    """From when to when each job had its GPUs, to the second."""
    return [(task.job.name, task.preemptions, task.intervals) for task in outcome.tasks]


JOBS = st.lists(
    st.tuples(
        st.integers(0, 3000), st.sampled_from([1, 1, 1, 2, 3, 4, 8, 16]), st.integers(1, 5000)
    ),
    min_size=1,
    max_size=10,
)
TROUBLE = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3000), st.integers(1, 2000)), max_size=2
)


@settings(max_examples=12, deadline=None)
@given(
    shapes=JOBS,
    trouble=TROUBLE,
    rule=st.sampled_from([by_remaining_work, by_attained_service, by_worth]),
    budget=st.sampled_from([0.0, 0.0, 0.5, 2.0]),
    seed=st.integers(0, 9),
)
def test_every_credit_is_accounted_for(
    shapes: list[tuple[int, int, int]],
    trouble: list[tuple[int, int, int]],
    rule: Rule,
    budget: float,
    seed: int,
) -> None:
    """The ledger of a whole run, failures and empty wallets included, is sound to the last row."""
    jobs = [job(f"j{n}", *shape, tenant=f"t{n % 3}") for n, shape in enumerate(shapes)]
    failures = {node: Failure(node, at, at + lasts) for node, at, lasts in trouble}
    exchange = kept(rule, MarketRules(budget=budget))
    outcome = simulate(
        with_values(jobs, seed=seed), NODES, exchange, failures=list(failures.values())
    )
    assert all(task.ended >= 0 for task in outcome.tasks)
    verification = verify_store(exchange.store)
    assert verification.problem == ""
    assert verification.commits > 0
    # What is granted is in wallets, or was paid; and when all is over nothing is held.
    moved = exchange.store.moved
    accounts = exchange.ledger.accounts()
    assert sum(a.posted for a in accounts) == 0
    paid = moved.get(TransferKind.RENT, 0)
    assert paid == next(a.posted for a in accounts if a.id == REVENUE)
    levied = moved.get(TransferKind.LEVY, 0) + moved.get(TransferKind.SEED, 0)
    # Whoever displaces pays what the displaced are compensated with.
    assert moved.get(TransferKind.PREEMPTION, 0) == moved.get(TransferKind.COMPENSATION, 0)
    assert levied == next(a.posted for a in accounts if a.id == fund_of("gpu"))


@settings(max_examples=10, deadline=None)
@given(shapes=JOBS, rule=st.sampled_from([by_remaining_work, by_attained_service, by_worth]))
def test_leaving_out_rounds_without_bids_changes_nothing(
    shapes: list[tuple[int, int, int]], rule: Rule
) -> None:
    jobs = [job(f"j{n}", *shape, tenant=f"t{n % 3}") for n, shape in enumerate(shapes)]
    few, all_ = kept(rule), kept(rule, skip=False)
    assert lives(simulate(jobs, NODES, few)) == lives(simulate(jobs, NODES, all_))
    assert few.rounds <= all_.rounds

    def paid(exchange: SimulatedExchange) -> dict[str, int]:
        # Refills that nobody has looked at yet are not granted yet.
        return {
            lease.bid_uid: lease.charged
            for n in range(3)
            for lease in exchange.ledger.leases_of(f"wallet/t{n}")
        }

    assert paid(few) == paid(all_)


def test_a_round_each_second_decides_the_same_while_agents_look_as_often() -> None:
    """Between events and looks nothing changes, so the seconds between need no round."""

    class EachSecond(SimulatedExchange):
        def next_decision(self, now: int, *, any_waiting: bool) -> int | None:
            super().next_decision(now, any_waiting=any_waiting)
            return now + 1

        def _reconsider(self, running, now):  # type: ignore[no-untyped-def]
            return super()._reconsider(running, now) if now % 60 == 0 else ([], [])

        def _bid(self, task, now):  # type: ignore[no-untyped-def]
            number = self._number[id(task)]
            key = number, self._wins.get(number, 0)
            if now % 60 and key in self.bids:
                return self.bids[key]
            self.bids[key] = super()._bid(task, now)
            return self.bids[key]

    each, few = (
        kind("each", by_remaining_work, MarketRules(look_seconds=60), skip=False, history=True)
        for kind in (EachSecond, SimulatedExchange)
    )
    each.bids = {}  # type: ignore[attr-defined]
    # Arrivals on the minute, where agents look anyway; lengths so that ends are as well.
    jobs = [
        job(f"j{n}", 60 * (n // 3), gpus, 60 * minutes, tenant=f"t{n % 2}")
        for n, (gpus, minutes) in enumerate([(8, 12), (4, 5), (2, 9), (8, 3), (1, 2), (4, 4)])
    ]
    assert lives(simulate(jobs, (8,), each)) == lives(simulate(jobs, (8,), few))
    assert each.rounds > 20 * few.rounds


def test_it_displaces_only_for_what_is_worth_its_restart_and_gives_notice() -> None:
    first = job("one", 0, 8, 1000, value=100.0, tenant="a")
    much = job("much", 500, 8, 1000, value=400.0, tenant="b")
    little = job("little", 500, 8, 500, value=103.0, tenant="b")  # a little more per GPU-second
    outcome = simulate([first, much], (8,), kept(by_worth, MarketRules(notice_seconds=30)))
    # Who is displaced works on until its notice is over; then its restart is to be done, too.
    assert ends(outcome) == {"much": 1530, "one": 1530 + 470 + 40}
    assert measure(outcome).preemptions == 1
    metrics = measure(simulate([first, little], (8,), find("exchange-worth")))
    assert metrics.preemptions == 0


def test_winners_pay_what_the_next_would_have_and_the_displaced_are_paid() -> None:
    alone = kept(by_worth)
    simulate([job("one", 0, 8, 1000)], (8,), alone)
    # Nobody rivals it: the floor, for 8 GPUs and 1,000 seconds.
    paid = alone.store.moved[TransferKind.RENT] + alone.store.moved[TransferKind.LEVY]
    assert paid == -(-FLOOR * 8 * 1000 // 3600)
    assert TransferKind.COMPENSATION not in alone.store.moved
    rivals = kept(by_worth)
    jobs = [
        job("one", 0, 8, 1000, tenant="a"),
        job("two", 0, 8, 900, tenant="b"),
        job("much", 400, 8, 100, value=50.0, tenant="c"),
    ]
    simulate(jobs, (8,), rivals)
    moved = rivals.store.moved
    assert moved[TransferKind.RENT] > moved[TransferKind.COMPENSATION] > 0


def test_a_job_that_is_nearly_done_raises_its_bid_and_keeps_its_gpus() -> None:
    long = job("long", 0, 8, 4000, tenant="a")
    # It would have displaced the bid of the beginning, but not that of a job with 100 s left.
    short = job("short", 3900, 8, 1500, tenant="b")
    other = job("other", 10, 8, 9000, tenant="c")  # somebody waits, so that agents think
    exchange = kept(by_remaining_work)
    outcome = simulate([long, short, other], (8,), exchange)
    assert ends(outcome)["long"] == 4000
    (lease,) = exchange.ledger.leases_of("wallet/a")
    assert lease.max_price > 5 * exchange._unit * 3600 / (8 * 4000), "five times its first bid"


def test_equals_never_swap_places() -> None:
    jobs = [job(f"j{n}", n, 8, 1000) for n in range(6)]
    assert measure(simulate(jobs, (8,), find("exchange-worth"))).preemptions == 0


def test_equals_that_waited_for_days_do_not_swap_either() -> None:
    many = [job(f"j{n}", n, 8, 50_000) for n in range(5)]
    assert measure(simulate(many, (8,), find("exchange-blind"))).preemptions < 75


def test_a_tenant_without_credits_waits_and_one_with_more_weight_goes_first() -> None:
    """Both want everything; what they are granted decides, by the weight of their priority."""
    jobs = [job(f"a{n}", 0, 8, 7200, tenant="a", priority=3) for n in range(4)]
    jobs += [job(f"b{n}", 0, 8, 7200, tenant="b") for n in range(4)]
    exchange = kept(by_remaining_work, MarketRules(budget=0.7))
    outcome = simulate(jobs, (8,), exchange)
    end_times = ends(outcome)
    assert sum(end_times[f"a{n}"] for n in range(4)) < sum(end_times[f"b{n}"] for n in range(4))
    assert verify_store(exchange.store).problem == ""


def test_a_failing_node_ends_leases_and_nobody_pays_for_it() -> None:
    exchange = kept(by_remaining_work)
    costs = Costs(restart=40, checkpoint_every=300)
    failure = Failure(node=0, at=1000, until=2000)
    outcome = simulate([job("a", 0, 8, 1500)], (8,), exchange, costs=costs, failures=[failure])
    # 1000 s done, 900 saved; the node is back at 2000; 600 s left, and 40 to restart.
    assert ends(outcome) == {"a": 2000 + 600 + 40}
    phases = {lease.phase for lease in exchange.ledger.leases_of("wallet/gpu")}
    assert phases == {Phase.RELEASED}


def test_who_won_devices_that_failed_before_it_began_bids_anew() -> None:
    jobs = [job("low", 0, 8, 5000, tenant="a"), job("high", 600, 8, 100, tenant="b")]
    # It has won and waits for the notice to be over when the node fails.
    failure = Failure(node=0, at=620, until=700)
    outcome = simulate(jobs, (8,), kept(by_remaining_work), failures=[failure])
    assert ends(outcome)["high"] == 800


def test_gpus_that_differ_are_bid_for_by_how_fast_they_are() -> None:
    slow = {"v100": 1.0, "k80": 0.25}
    same = {"v100": 1.0, "k80": 0.9}
    jobs = [
        job("picky", 0, 4, 1000, speeds=slow, tenant="a"),
        job("easy", 10, 4, 1000, speeds=same, tenant="b"),
    ]
    outcome = simulate(jobs, (4, 4), kept(by_remaining_work), kinds=("v100", "k80"))
    assert ends(outcome) == {"picky": 1000, "easy": 10 + 1112}


def test_a_job_on_slow_gpus_moves_to_fast_ones_when_they_are_free() -> None:
    speeds = {"v100": 1.0, "k80": 0.1}
    jobs = [
        job("first", 0, 4, 600, speeds=speeds, tenant="a"),
        job("second", 1, 4, 1000, speeds=speeds, tenant="b"),
    ]
    outcome = simulate(jobs, (4, 4), kept(by_remaining_work), kinds=("v100", "k80"))
    # Until 600 it does a tenth; then it has 940 s to do on the faster ones, and its restart.
    assert ends(outcome)["first"] == 600
    assert 1500 < ends(outcome)["second"] < 2000
    assert measure(outcome).preemptions == 1


@pytest.mark.parametrize("name", RULES)
def test_one_seed_one_result_whatever_the_order_of_the_jobs(name: str) -> None:
    jobs = with_values(generate(40, gpus=32, load=1.5, seed=3), seed=3)

    def play(jobs: list[Job]) -> object:
        return measure(simulate(jobs, NODES, find(name)))

    assert play(jobs) == play(list(reversed(jobs)))
    assert play(jobs) != play(jobs[:-1])


def test_a_bidder_never_pays_more_than_its_job_is_worth() -> None:
    jobs = with_values(generate(60, gpus=16, load=3.0, seed=5), seed=5)
    jobs = [msgspec.structs.replace(j, tenant=j.name, gpus=min(8, j.gpus)) for j in jobs[:30]]
    exchange = kept(by_worth)
    simulate(jobs, (8, 8), exchange)
    unit = exchange._unit
    for j in jobs:
        paid = sum(lease.charged for lease in exchange.ledger.leases_of(f"wallet/{j.name}"))
        assert paid <= int(j.value * unit) + FLOOR * j.work // 3600 + 1


def test_the_longest_job_by_far_does_not_wait_until_all_others_are_done() -> None:
    # A day of short jobs that fill the node, and one that takes more than all of them: put off, it
    # would run alone for days.
    short = [job(f"s{n:03d}", 200 * n, 4, 480) for n in range(400)]
    long = job("long", 300, 4, 300_000)
    outcomes = {name: simulate([*short, long], (8,), find(name)) for name in ("srtf", "exchange")}
    assert ends(outcomes["exchange"])["long"] < ends(outcomes["srtf"])["long"]
    last = {name: max(ends(outcome).values()) for name, outcome in outcomes.items()}
    assert last["exchange"] < last["srtf"]


def test_what_loses_its_worth_sooner_goes_first_though_it_is_worth_less() -> None:
    runs = job("runs", 0, 8, 100, value=0.1)
    patient = job("patient", 10, 8, 1000, value=9.0, patience=1e6, tenant="a")
    hurried = job("hurried", 10, 8, 1000, value=5.0, patience=2000.0, tenant="b")
    outcome = simulate([runs, patient, hurried], (8,), find("exchange-worth"))
    assert ends(outcome)["hurried"] < ends(outcome)["patient"]
    worth = {t.job.name: t.job.worth_after(t.waited) for t in outcome.tasks}
    assert worth["patient"] > 8.9
    assert worth["hurried"] > 4.5


@pytest.mark.slow
def test_on_a_loaded_fleet_the_exchange_is_ahead_where_it_says() -> None:
    jobs = generate(300, gpus=64, load=2.0, seed=8)
    metrics = {
        name: measure(simulate(jobs, [8] * 8, find(name)))
        for name in ("fifo", "las", "srtf", "exchange", "exchange-blind")
    }
    assert metrics["exchange"].average_completion <= metrics["srtf"].average_completion
    assert metrics["exchange"].preemptions < metrics["srtf"].preemptions
    assert metrics["exchange-blind"].average_completion < metrics["las"].average_completion
    assert metrics["exchange"].busy_utilisation >= metrics["fifo"].busy_utilisation
    # Until the last job has ended, not arrived: whoever puts long jobs off has less than a queue.
    assert metrics["exchange"].utilisation > metrics["srtf"].utilisation
    valued = with_values(jobs, seed=7)
    worth = {
        name: measure(simulate(valued, [8] * 8, find(name))).value
        for name in ("fifo", "las", "srtf", "priority", "exchange-worth")
    }
    assert max(worth, key=lambda name: worth[name]) == "exchange-worth"


def test_tasks_tell_their_state() -> None:
    task = Task(job("a", 0, 1, 10))
    assert repr(task) == "<Task a waits, 10 s left>"
