"""The pilot's benchmark: peers checked by hand, a referee that sees, and a quick run."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bidplane import bench
from bidplane.api.gate.policy import PolicyRule, Ruling
from bidplane.bench.support import operator_day as load
from bidplane.bench.support import piloted
from bidplane.bench.support.operator_day import BINS_OF_A_DAY, UsedService
from bidplane.bench.support.piloted import PilotedArm, PilotedDay, bad_proposals
from bidplane.core.minds.rules import DEFAULT_RULES

DAYS = 5
REFUSALS = (
    "Protected", "OverLimit", "NeedsApproval", "OffTopic", "BadAction", "QueueNotEmpty",
)  # fmt: skip


def daily(bin: int = 24, length: int = 3) -> UsedService:
    """Use at the same time of each day."""
    bins = frozenset(d * BINS_OF_A_DAY + bin + i for d in range(DAYS) for i in range(length))
    return UsedService(name="daily", bins=bins, days=DAYS)


def play(folder: Path, services: list[UsedService], **options: object) -> PilotedDay:
    folder.mkdir(exist_ok=True)
    arm = PilotedArm(
        services, folder / "ledger.db", window=1800, settings=DEFAULT_RULES, **options  # type: ignore[arg-type]
    )  # fmt: skip
    return arm.play(DAYS, lambda day: None)


def test_the_peers_by_hand() -> None:
    service = daily()
    none = load.fixed_window([service], 1800)
    # On each of two scored days it waits once, and holds its GPU for the window and the cold start.
    assert none.misses == 2
    assert none.idle_hours == pytest.approx(2 * (1800 + 60) / 3600)
    assert load.oracle([service]).misses == 0
    assert load.oracle([service]).idle_hours == pytest.approx(2 * 60 / 3600)
    assert load.three_of_three([service], 1200) == (2, 2, 0.0)


def test_a_daily_service_is_warm_in_time_and_sleeps_at_once(tmp_path: Path) -> None:
    day = play(tmp_path, [daily()])
    assert (day.result.misses, day.prewarmed, day.prewarm_hits) == (0, 2, 2)
    # 90 s before each use, and a minute of silence after it.
    assert day.result.idle_hours == pytest.approx(2 * (90 + 60) / 3600)
    assert day.violations == 0
    assert day.audit.is_sound
    assert (day.audit.verdicts, day.audit.outcomes) == (day.proposals, day.proposals)


def test_use_that_begins_late_is_waited_for_and_costs_every_arm_the_wait(tmp_path: Path) -> None:
    late = {bin: 240 for bin in daily().bins if bin % BINS_OF_A_DAY == 24}
    service = msgspec.structs.replace(daily(), late=late)
    # Two pauses are scored: what follows the history, and a day without its half hour.
    assert load.gaps(service) == [24 * 600 + 240, (144 - 3) * 600 + 240]
    assert load.gaps(daily()) == [24 * 600, (144 - 3) * 600]
    day = play(tmp_path, [service])
    assert (day.result.misses, day.prewarm_hits) == (0, 2)
    # Warm for the first 240 s of the ten minutes, besides: it learned that use comes so late.
    assert day.result.idle_hours == pytest.approx(2 * (90 + 240 + 60) / 3600)
    assert day.violations == 0


def test_beginnings_are_drawn_within_their_ten_minutes() -> None:
    (drawn,) = load.drawn_late([daily()], 1)
    assert drawn.late.keys() == {d * BINS_OF_A_DAY + 24 for d in range(DAYS)}
    assert set(drawn.late.values()) <= {0, 120, 240, 360, 480}
    assert drawn == load.drawn_late([daily()], 1)[0] != load.drawn_late([daily()], 2)[0]


def test_the_pilot_makes_no_more_proposals_in_an_hour_than_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = [daily() for _ in range(4)]
    assert play(tmp_path / "a", services).prewarmed == 2 * 4
    monkeypatch.setattr(piloted, "MOST_AN_HOUR", 3)
    assert play(tmp_path / "b", services).prewarmed == 2 * 3


def test_what_is_injected_is_refused_and_recorded(tmp_path: Path) -> None:
    day = play(tmp_path, [daily(), daily(bin=60)], inject=bad_proposals())
    assert day.violations == 0
    assert {*REFUSALS} <= day.refused.keys()
    assert sum(day.refused.values()) > 100
    assert day.audit.verdicts == day.proposals


def test_the_referee_sees_a_gate_that_lets_all_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = piloted.PolicySpec(
        rules=[PolicyRule(name="all", when="true", ruling=Ruling.ALLOW)]
    )
    monkeypatch.setattr(piloted, "POLICY", everything)
    assert play(tmp_path, [daily()], inject=bad_proposals()).violations > 50


def test_a_line_that_is_none_of_servegen_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "servegen" / "language" / "m"
    folder.mkdir(parents=True)
    (folder / "chunk-1-trace.csv").write_text("0,0.1,1,,0,0\nhello\n")
    with pytest.raises(load.UserError, match=r"chunk-1-trace\.csv:2 is no line of ServeGen"):
        load.read_services(tmp_path)


@pytest.mark.slow
def test_a_quick_run() -> None:
    report = bench.find("pilot")(quick=True, data=None)
    rows = {result.metric: result for result in report.results}
    assert rows["all: SLO misses"].met
    assert rows["injected: violations applied"].ours == 0
    assert rows["judged: cold starts avoided by pre-warming"].peer_name == "3 of 3, same run"
