"""
The five scenes of an operator's day, by the real rules, gate, Policies and audit: correct,
pleasantly surprising, blocked, off-topic, correct.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bidplane.core.gate.digest import markdown
from bidplane.ledger.audit.check import verify_audit
from bidplane.ledger.stores import open_store
from bidplane.sim import night
from bidplane.sim.night import NightResult, Scene, play_night


class PlayedNight(msgspec.Struct, frozen=True):
    result: NightResult
    lines: list[str]
    ledger: Path

    def scene(self, number: int) -> Scene:
        return self.result.scenes[number]


def played(folder: Path) -> PlayedNight:
    lines: list[str] = []
    result = play_night(folder, lambda at, line: lines.append(f"{int(at) // 60} {line}"))
    return PlayedNight(result, lines, folder / "ledger.db")


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> PlayedNight:
    return played(tmp_path_factory.mktemp("night"))


def moment(hour: int, minute: int) -> int:
    return 3600 * hour + 60 * minute


def test_midnight_two_idle_pools_are_parked_correctly(story: PlayedNight) -> None:
    scene = story.scene(0)
    assert (scene.at, scene.verdict) == (0, "Correct")
    names = sorted(line.split()[1] for line in scene.proposals)
    assert names == ["a100-a:", "a100-b:", "l4-a:", "l4-b:"], "one of each pool stays in service"


def test_03_14_a_service_is_prewarmed_for_the_job_at_four(story: PlayedNight) -> None:
    scene = story.scene(1)
    assert (scene.at - scene.at % 60, scene.verdict) == (moment(3, 14), "Pleasantly surprising")
    assert scene.reason == "started at 04:00 on the last 3 of 3 days"
    assert "240 (the batch job begins, and finds it warm)" in story.lines
    assert "371 SleepEndpoint agent-batch/embed, proposed by pilot, is done" in story.lines


def test_07_40_its_own_log_is_not_evicted(story: PlayedNight) -> None:
    scene = story.scene(2)
    assert (scene.at, scene.verdict) == (moment(7, 40), "Blocked")
    assert scene.proposals == ("EvictPod default/pilot-log: Denied",)


def test_13_02_a_haiku_is_off_topic(story: PlayedNight) -> None:
    scene = story.scene(3)
    assert (scene.at, scene.verdict) == (moment(13, 2), "Off-topic")
    assert "warm silicon" in scene.proposals[0]
    assert scene.proposals[0].endswith("Denied")


def test_22_30_the_last_leases_of_a_node_move_and_it_is_freed(story: PlayedNight) -> None:
    scene = story.scene(4)
    assert (scene.at // 60, scene.verdict) == (moment(22, 30) // 60, "Correct")
    assert scene.reason == "40 devices in service before, 32 after: 20% less"


def test_the_digest_has_all_of_it_and_the_audit_verifies(story: PlayedNight) -> None:
    digest = story.result.digest
    assert (len(digest.done), len(digest.refused), len(digest.waiting)) == (7, 2, 0)
    assert "4 devices given back, with rents of 12.00 credits per hour" in markdown(digest)
    store = open_store(story.ledger, read_only=True)
    report = verify_audit(store)
    store.close()
    assert report.is_sound
    assert report.verdicts == story.result.proposals == 9
    assert (report.outcomes, report.unfinished) == (7, 0)


def test_a_policy_that_lets_the_pilot_do_nothing_misses_what_it_would_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verdicts come from what happened: by the default Policy, Proposals wait for people."""
    monkeypatch.setattr(night, "NIGHT_POLICY", night.DEFAULT_POLICY)
    verdicts = [scene.verdict for scene in played(tmp_path).result.scenes]
    assert verdicts == ["Missed", "Missed", "Blocked", "Off-topic", "Missed"]
