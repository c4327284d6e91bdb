"""The idle accounting against a count second by second, which shares no code with it."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from bidplane.core.shadow.idle import OwnerUse, use_by_day, use_by_owner
from bidplane.core.shadow.model import ClusterRecording, NodeGpus, ShadowPod
from bidplane.core.shadow.stretches import MeasuredDevice, StretchRecorder

STEP, STEPS = 10, 12
BEGIN = 86_400 * 20_000 - 50  # a day ends within the window
END = BEGIN + STEP * STEPS

times = st.integers(BEGIN - 40, END + 40)
# One byte for each step: drawn at once, a week of steps takes no longer than one.
VALUES: list[float | None] = [None, 0.0, 1.0, 1.1, 90.0]
measured = st.binary(min_size=STEPS, max_size=STEPS).map(
    lambda drawn: [VALUES[byte % len(VALUES)] for byte in drawn]
)


@st.composite
def pods(draw: st.DrawFn) -> list[tuple[ShadowPod, list[list[float | None]]]]:
    """Pods with the largest value of each of their devices in each step."""
    drawn = []
    for number in range(draw(st.integers(1, 4))):
        moments = sorted(draw(st.tuples(times, times, times)))
        pod = ShadowPod(
            namespace="ns",
            name=f"p{number}",
            owner=draw(st.sampled_from(["Job/a", "Deployment/b"])),
            gpus=draw(st.integers(1, 3)),
            created=moments[0],
            scheduled=draw(st.sampled_from([None, moments[1]])),
            ended=draw(st.sampled_from([None, moments[2]])),
        )
        devices = [draw(measured) for _ in range(pod.gpus)]
        drawn.append((pod, devices))
    return drawn


def recording(drawn: list[tuple[ShadowPod, list[list[float | None]]]]) -> ClusterRecording:
    recorder = StretchRecorder(step=STEP, below=1.0)
    for pod, devices in drawn:
        for number, values in enumerate(devices):
            device = MeasuredDevice(pod.namespace, pod.name, f"GPU-{number}")
            for step, value in enumerate(values[:STEPS]):
                if value is not None:
                    recorder.add(device, BEGIN + STEP * (step + 1), value)
    return ClusterRecording(
        source="drawn",
        begin=BEGIN,
        end=END,
        step=STEP,
        nodes=[NodeGpus("n", 12)],
        pods=[pod for pod, _ in drawn],
        uses=recorder.uses(),
    )


def referee(
    drawn: list[tuple[ShadowPod, list[list[float | None]]]],
) -> dict[str, tuple[int, int, int]]:
    """Allocated, busy and idle GPU-seconds of each owner: each second of each GPU by itself."""
    counts: dict[str, list[int]] = {}
    for pod, devices in drawn:
        for second in range(BEGIN, END):
            there = (
                pod.scheduled is not None
                and pod.scheduled <= second
                and (pod.ended is None or second < pod.ended)
            )
            if not there:
                continue
            count = counts.setdefault(pod.owner, [0, 0, 0])
            for values in devices:
                value = values[(second - BEGIN) // STEP]
                count[0] += 1
                if value is not None:
                    count[1 if value > 1.0 else 2] += 1
    return {owner: (a, b, c) for owner, (a, b, c) in counts.items()}


def seconds(use: OwnerUse) -> tuple[int, int, int]:
    hours = use.hours
    return round(3600 * hours.allocated), round(3600 * hours.busy), round(3600 * hours.idle)


@given(pods())
def test_each_owner_has_what_the_referee_counts(
    drawn: list[tuple[ShadowPod, list[list[float | None]]]],
) -> None:
    uses = use_by_owner(recording(drawn))
    assert {use.owner: seconds(use) for use in uses} == referee(drawn)
    assert [use.hours.idle for use in uses] == sorted((u.hours.idle for u in uses), reverse=True)


@given(pods())
def test_the_days_have_what_the_owners_have(
    drawn: list[tuple[ShadowPod, list[list[float | None]]]],
) -> None:
    week = recording(drawn)
    by_owner = referee(drawn).values()
    days = use_by_day(week)
    assert [round(3600 * day.offered) for day in days] == [12 * 50, 12 * (END - BEGIN - 50)]
    for number, field in enumerate(("allocated", "busy", "idle")):
        total = sum(getattr(day.hours, field) for day in days)
        assert round(3600 * total) == sum(counts[number] for counts in by_owner)


def one_pod(*values: float | None, ended: float | None = None) -> ClusterRecording:
    pod = ShadowPod(
        namespace="ns",
        name="p",
        owner="Deployment/d",
        gpus=1,
        created=BEGIN - 100,
        scheduled=BEGIN - 90,
        ended=ended,
    )
    return recording([(pod, [[*values, *[None] * (STEPS - len(values))]])])


def test_idle_since_is_the_begin_of_the_last_stretch() -> None:
    (use,) = use_by_owner(one_pod(*[0.0] * 3, 90.0, *[0.0] * 8))
    assert (use.idle_now, use.idle_since) == (1, BEGIN + 40)


def test_a_gpu_that_was_busy_a_moment_ago_is_not_idle() -> None:
    (use,) = use_by_owner(one_pod(*[0.0] * 11, 90.0))
    assert (use.idle_now, use.idle_since) == (0, None)


def test_a_gpu_that_nobody_measures_any_more_is_not_idle_now() -> None:
    (use,) = use_by_owner(one_pod(*[0.0] * 9))
    assert (use.idle_now, seconds(use)) == (0, (120, 0, 90))


def test_a_pod_is_not_idle_since_before_it_began() -> None:
    """Another pod of its name was idle on that GPU until then."""
    pod = msgspec.structs.replace(one_pod().pods[0], scheduled=BEGIN + 45)
    (use,) = use_by_owner(recording([(pod, [[0.0] * STEPS])]))
    assert use.idle_since == BEGIN + 45


def test_a_pod_that_is_gone_holds_nothing_idle() -> None:
    (use,) = use_by_owner(one_pod(*[0.0] * 12, ended=END - 1))
    assert (use.idle_now, seconds(use)) == (0, (119, 0, 119))


def test_more_devices_than_a_pod_holds_do_not_count_twice() -> None:
    week = one_pod(*[0.0] * 12)
    (use,) = week.uses
    twice = [use, type(use)(namespace="ns", pod="p", device="other", stretches=use.stretches)]
    doubled = msgspec.structs.replace(week, uses=twice)
    assert seconds(use_by_owner(doubled)[0]) == (120, 0, 120)


def test_a_step_that_is_read_twice_counts_once() -> None:
    recorder = StretchRecorder(step=STEP, below=1.0)
    device = MeasuredDevice("ns", "p", "GPU-0")
    for end in (BEGIN + 10, BEGIN + 20, BEGIN + 10, BEGIN + 20, BEGIN + 30):
        recorder.add(device, end, 0.0)
    (use,) = recorder.uses()
    assert [(s.begin, s.end, s.idle) for s in use.stretches] == [(BEGIN, BEGIN + 30, True)]
