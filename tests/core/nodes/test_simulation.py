"""What a simulated pod does follows from its annotations, its seed and how long it has run."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidplane.api import labels
from bidplane.core.nodes.simulation import BadScript, SimulatedRun, SimulationStage, read

NAMES = [
    labels.SIMULATED_SECONDS,
    labels.SIMULATED_START_SECONDS,
    labels.SIMULATED_LOAD_SECONDS,
    labels.SIMULATED_FAILURES,
    labels.SIMULATED_EXIT_CODE,
    labels.SIMULATED_SHUTDOWN_SECONDS,
    labels.SIMULATED_UTILISATION,
    labels.SIMULATED_MEMORY,
    labels.SIMULATED_XID,
    labels.SIMULATED_DONE,
]


def run(number: int = 0, *, seed: str = "", name: str = "p", **notes: str) -> SimulatedRun:
    annotations = {f"bidplane.dev/simulated-{key.replace('_', '-')}": v for key, v in notes.items()}
    pod = {"metadata": {"name": name, "namespace": "n", "annotations": annotations}}
    return read(pod, seed=seed).run(number)


@given(st.sampled_from(NAMES), st.text() | st.sampled_from(["nan", "inf", "1e400", "-1", "5..2"]))
def test_what_is_no_number_is_named_and_what_is_one_is_within_bounds(name: str, text: str) -> None:
    pod = {"metadata": {"name": "p", "annotations": {name: text}}}
    try:
        script = read(pod)
    except BadScript as error:
        said = str(error)
    else:
        said = ""
    if said:
        assert said.startswith(f"{name}: {text!r} is ")
        assert 'write it as "' in said
        return
    found = script.run(0)
    assert 0 <= found.start <= 1e9
    assert 0 <= found.load <= 1e9
    assert found.work is None or 0 <= found.work <= 1e9
    assert 0 <= found.utilisation <= 100
    assert 0 <= found.memory <= 100


def test_a_range_is_drawn_by_the_seed_the_pod_and_the_run() -> None:
    drawn = run(seconds="20..40").work
    assert drawn is not None
    assert 20 <= drawn <= 40
    assert run(seconds="20..40").work == drawn
    others = [
        run(seconds="20..40", seed="1").work,
        run(1, seconds="20..40").work,
        run(seconds="20..40", name="q").work,
    ]
    assert len({drawn, *others}) == 4
    same = {run(seconds="20..40", name=name, seed="9").work for name in "abc"}
    assert len(same) == 3, "the fleet's seed does not make pods alike"


def test_pods_of_one_seed_do_the_same_whatever_they_are_called() -> None:
    pods = [
        {
            "metadata": {
                "name": name,
                "annotations": {
                    labels.SIMULATED_SECONDS: "20..40",
                    labels.SIMULATED_SEED: "tuesday",
                },
            }
        }
        for name in "ab"
    ]
    assert read(pods[0]).run(0) == read(pods[1]).run(0)


def test_stages_follow_each_other() -> None:
    found = run(start_seconds="5", load_seconds="10", seconds="20", exit_code="3")
    assert (found.start, found.ends_after, found.code) == (5, 30, 3)
    assert [found.stage(at) for at in (0, 9.9, 10, 29.9, 30)] == [
        SimulationStage.LOADING,
        SimulationStage.LOADING,
        SimulationStage.WORKING,
        SimulationStage.WORKING,
        SimulationStage.ENDED,
    ]
    assert run(1, start_seconds="5").start == 0, "its image is there by then"
    assert run().ends_after == math.inf


def test_work_done_before_is_not_done_again_but_loaded_again() -> None:
    assert run(seconds="20", done="15", load_seconds="4").ends_after == 9
    assert run(seconds="20", done="25").ends_after == 0


def test_a_failure_before_the_end_is_how_it_ends() -> None:
    always = run(seconds="1000", failures_per_hour="100000")
    assert always.ends_after < 1000
    assert always.code == 1
    assert run(seconds="1000", failures_per_hour="100000", exit_code="7").code == 7
    seldom = run(seconds="10", failures_per_hour="0.0001")
    assert (seldom.ends_after, seldom.code) == (10, 0)


@given(st.integers(0, 1000), st.floats(0, 100))
def test_gpus_fill_while_it_loads(number: int, running: float) -> None:
    found = run(number, load_seconds="50", utilisation_percent="40..90", memory_percent="70")
    assert 0 <= found.memory_percent(running) <= 70
    assert found.memory_percent(50) == 70
    assert found.load_percent(running) <= 90
    assert found.load_percent(60) == found.utilisation >= 40
    assert found.load_percent(10) == 5


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("seconds", "soon", "neither a number from 0 to 1000000000 nor a range of such"),
        ("seconds", "40..20", '"20..40"'),
        ("exit_code", "256", "a whole number from 0 to 255"),
        ("exit_code", "1.5", "a whole number"),
        ("utilisation_percent", "101", "from 0 to 100"),
        ("failures_per_hour", "often", "is not a number from 0"),
    ],
)
def test_words(name: str, text: str, words: str) -> None:
    values: dict[str, Any] = {name: text}
    with pytest.raises(BadScript, match=words):
        run(**values)
