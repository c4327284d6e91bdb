"""`bidplane bench market`: it ends, it can be written as JSON, and it measures what it says."""

from __future__ import annotations

import msgspec
import pytest

from bidplane.bench import market
from bidplane.bench.support.contested import contested_round
from bidplane.core.market import clear_round
from bidplane.core.market.clearing.columns import ColumnOutcome


@pytest.mark.slow
def test_quick_is_a_whole_report() -> None:
    report = market.run(quick=True, data=None)
    assert msgspec.json.decode(msgspec.json.encode(report), type=type(report)) == report
    metrics = [result.metric for result in report.results]
    for bids in ("1,000 bids", "10,000 bids", "100,000 bids"):
        assert sum(bids in metric for metric in metrics) >= 2
    assert any(result.peer_name == "HiGHS, proven optimal" for result in report.results)
    assert any(result.peer_name == "FIFO with skip" for result in report.results)


def test_the_measured_instances_are_overloaded_as_they_say() -> None:
    for load in (1.5, 4.0):
        case = market.instance(2000, 20_000, load=load)
        assert case.sizes.sum() / case.free.sum() == pytest.approx(load, rel=0.1)


def test_bids_of_a_contested_round_displace_leases_that_fill_the_machines() -> None:
    round_input = contested_round(4, waiting=20, displacing=3, seed=1)
    devices = [device for lease in round_input.incumbents for device in lease.devices]
    assert sorted(devices) == sorted(f"m{m}/{gpu}" for m in range(4) for gpu in range(8))
    outcome = clear_round(round_input)
    assert {won.ask for won in outcome.won} == {"b20", "b21", "b22"}
    assert len(outcome.displaced) >= 3


def test_the_optimum_is_never_below_what_was_sold() -> None:
    case = market.instance(200, 400, load=4.0, seed=5)
    best, proven = market.optimum(case, seconds=20)
    assert proven
    assert market.sold(case, ColumnOutcome(case.free, (), case.book)) <= best * (1 + 1e-6)


def test_gangs_have_hundreds_of_needs_and_many_of_them_lose() -> None:
    case = market.gangs(10_000, load=4.0)
    outcome = ColumnOutcome(case.free, (), case.book)
    assert 300 < len(case.book.needs) <= 512
    assert case.sizes.sum() >= 4 * case.free.sum()
    kinds = set(outcome.kind[outcome.winners].tolist())
    assert len(kinds) > 100, "few needs win: this shows too little"
