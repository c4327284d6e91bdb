"""The life of a pod on its node: every row of the table, and promises over all of them."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidplane.core.pods.environment import command_line, expand
from bidplane.core.pods.life import (
    TRANSITIONS,
    ContainerRun,
    ContainerState,
    Halt,
    LifeError,
    PodEvent,
    PodStage,
    PodState,
    Role,
    Start,
    Stop,
    advance,
    decide,
    next_backoff,
)
from bidplane.core.pods.probes import Probe, ProbeKind, Tally, tally
from bidplane.core.pods.status import StatusFacts, compose, phase_of

NOW = 1000.0


def ended(code, *, attempt=0, backoff=0.0, at=NOW):
    return ContainerRun(
        attempt=attempt,
        ordered=at - 5,
        backoff=backoff,
        started=at - 5,
        finished=at,
        exit_code=code,
    )


def running(attempt=0):
    return ContainerRun(attempt=attempt, ordered=NOW - 5, started=NOW - 5)


def container(name="main", role=Role.MAIN, run=None, **more):
    return ContainerState(name=name, role=role, run=run, **more)


def pod(*containers, stage=PodStage.RUNNING, **more):
    return PodState(stage=stage, containers=containers, prepared=True, **more)


def test_every_row_of_the_table_and_nothing_else():
    for stage in PodStage:
        for event in PodEvent:
            if event in TRANSITIONS[stage]:
                assert advance(stage, event) is TRANSITIONS[stage][event]
            else:
                with pytest.raises(LifeError, match=event):
                    advance(stage, event)


def test_init_containers_start_one_after_the_other():
    inits = [container("a", Role.INIT, ended(0)), container("b", Role.INIT), container()]
    decision = decide(pod(*inits, stage=PodStage.PREPARING), now=NOW)
    assert decision.stage is PodStage.INITIALISING
    assert decision.operations == [Start("b", 0, 0.0)]


def test_a_sidecar_that_has_not_started_holds_up_the_next():
    side = container("side", Role.SIDECAR, running())
    waits = pod(side, container("b", Role.INIT), container(), stage=PodStage.INITIALISING)
    assert decide(waits, now=NOW).operations == []
    up = msgspec.structs.replace(side, started=True)
    goes = pod(up, container("b", Role.INIT), container(), stage=PodStage.INITIALISING)
    assert decide(goes, now=NOW).operations == [Start("b", 0, 0.0)]


@pytest.mark.parametrize("stage", [PodStage.INITIALISING, PodStage.RUNNING])
def test_an_ephemeral_container_starts_once_and_decides_nothing(stage):
    work = container("work", Role.INIT if stage is PodStage.INITIALISING else Role.MAIN, running())
    main = [] if work.role is Role.MAIN else [container()]
    for run, asked in ((None, [Start("looks", 0, 0.0)]), (running(), []), (ended(1), [])):
        looks = container("looks", Role.EPHEMERAL, run)
        decision = decide(pod(work, *main, looks, stage=stage, restart_policy="Always"), now=NOW)
        assert (decision.stage, decision.operations) == (stage, asked)


def test_a_pod_does_not_wait_for_who_only_looks_and_takes_it_along():
    looks = container("looks", Role.EPHEMERAL, running(), started=True, ready=True)
    over = pod(container(run=ended(0)), looks, restart_policy="Never")
    decision = decide(over, now=NOW)
    assert decision.stage is PodStage.ENDING
    assert [operation.container for operation in decision.operations] == ["looks"]
    failed = msgspec.structs.replace(looks, run=ended(1))
    done = pod(container(run=ended(0)), failed, stage=PodStage.ENDED, restart_policy="Never")
    assert phase_of(done) == "Succeeded"


def test_ephemeral_containers_have_statuses_of_their_own_and_are_never_ready():
    spec = {"containers": [{"name": "main"}], "ephemeralContainers": [{"name": "looks"}]}
    looks = container("looks", Role.EPHEMERAL, running(), started=True, ready=True)
    serves = container(run=running(), started=True, ready=True)
    told = compose(
        {"metadata": {}, "spec": spec}, pod(serves, looks), StatusFacts(host_ip="1.2.3.4"), now=NOW
    )
    [one] = told["ephemeralContainerStatuses"]
    assert (one["name"], one["ready"], list(one["state"])) == ("looks", False, ["running"])
    assert [c["name"] for c in told["containerStatuses"]] == ["main"]
    assert "initContainerStatuses" not in told
    ended_badly = msgspec.structs.replace(looks, run=ended(1), ready=False)
    told = compose(
        {"metadata": {}, "spec": spec},
        pod(serves, ended_badly),
        StatusFacts(host_ip="1.2.3.4"),
        now=NOW,
    )
    assert {c["type"]: c["status"] for c in told["conditions"]}["Ready"] == "True"


def test_sidecars_end_after_the_work_the_last_first():
    sides = [container(name, Role.SIDECAR, running(), started=True) for name in ("one", "two")]
    busy = pod(*sides, container(run=running()), stage=PodStage.ENDING, grace_seconds=9)
    assert [stop.container for stop in decide(busy, now=NOW).operations] == ["main"]
    idle = pod(*sides, container(run=ended(0)), restart_policy="Never")
    decision = decide(idle, now=NOW)
    assert decision.stage is PodStage.ENDING
    assert [stop.container for stop in decision.operations] == ["two"]


@pytest.mark.parametrize(
    ("policy", "code", "again"),
    [("Always", 0, True), ("Always", 1, True), ("OnFailure", 0, False), ("OnFailure", 1, True),
     ("Never", 0, False), ("Never", 1, False)],
)  # fmt: skip
def test_restart_policies(policy, code, again):
    decision = decide(pod(container(run=ended(code)), restart_policy=policy), now=NOW)
    if again:
        assert decision.operations == [Start("main", 1, 10.0)]
    else:
        assert decision.stage is PodStage.ENDED
        assert phase_of(pod(container(run=ended(code)), stage=PodStage.ENDED)) == (
            "Failed" if code else "Succeeded"
        )


def test_the_backoff_doubles_to_five_minutes_and_is_forgiven():
    run, waits = ended(1), []
    for attempt in range(1, 9):
        wait = next_backoff(run, NOW)
        waits.append(wait)
        run = ended(1, attempt=attempt, backoff=wait)
    assert waits == [10, 20, 40, 80, 160, 300, 300, 300]
    assert next_backoff(run, NOW + 601) == 10


def test_within_the_backoff_nothing_is_started():
    waiting = pod(container(run=ended(1, attempt=1, backoff=10.0)))
    decision = decide(waiting, now=NOW + 9)
    assert (decision.operations, decision.look_again) == ([], NOW + 10)
    assert decide(waiting, now=NOW + 10).operations == [Start("main", 2, 20.0)]


runs = st.one_of(st.none(), st.just(running()), st.builds(ended, st.sampled_from([0, 1, 137])))
containers = st.lists(
    st.builds(
        ContainerState,
        name=st.uuids().map(str),
        role=st.sampled_from(Role),
        run=runs,
        started=st.booleans(),
        stopping=st.booleans(),
        sick=st.sampled_from(["", "ill"]),
    ),
    min_size=1,
    max_size=5,
)


@given(
    containers,
    st.sampled_from(PodStage),
    st.sampled_from(["Always", "OnFailure", "Never"]),
    st.booleans(),
)
def test_whatever_is_found_nothing_runs_twice_and_nothing_starts_at_the_end(
    found, stage, policy, halted
):
    halt = Halt(until=NOW + 5) if halted else None
    given_pod = pod(*found, stage=stage, restart_policy=policy, halt=halt)
    decision = decide(given_pod, now=NOW)
    known = {one.name: one for one in found}
    for operation in decision.operations:
        one = known[operation.container]
        if isinstance(operation, Start):
            assert not one.running
            assert decision.stage in (PodStage.INITIALISING, PodStage.RUNNING)
            assert operation.attempt == (one.run.attempt + 1 if one.run else 0)
        else:
            assert isinstance(operation, Stop)
            assert one.running
            assert not one.stopping
    if decision.stage in (PodStage.ENDED, PodStage.REMOVED) and stage is not PodStage.ENDED:
        assert stage is PodStage.REMOVED or not any(one.running for one in found)
    if halted:
        assert decision.stage in (PodStage.ENDING, PodStage.ENDED, PodStage.REMOVED)
    # Asked again with nothing changed, it says the same.
    again = decide(msgspec.structs.replace(given_pod, stage=decision.stage), now=NOW)
    assert (again.stage, again.operations) == (decision.stage, decision.operations)


def test_probes_count_in_a_row():
    probe = Probe(kind=ProbeKind.READINESS, action={}, successes=2, failures=3)
    so_far, seen = Tally(), []
    for answer in (True, True, False, False, True, False, False, False, True, True):
        so_far = tally(probe, so_far, answer)
        seen.append(so_far.good)
    assert seen == [None, True, True, True, True, True, True, False, False, True]


@pytest.mark.parametrize(
    ("text", "is_"),
    [("$(A)", "1"), ("$$(A)", "$(A)"), ("$(B)", "$(B)"), ("$", "$"), ("$(A", "$(A"), ("$$", "$"),
     ("a$b", "a$b"), ("$(A)$(A)", "11")],
)  # fmt: skip
def test_references_are_expanded_as_kubernetes_does(text, is_):
    assert expand(text, {"A": "1"}) == is_


@pytest.mark.parametrize(
    ("spec", "line"),
    [({}, ["in", "arg"]), ({"args": ["x"]}, ["in", "x"]), ({"command": ["c"]}, ["c"]),
     ({"command": ["c"], "args": ["x"]}, ["c", "x"])],
)  # fmt: skip
def test_command_and_args_replace_the_images(spec, line):
    assert command_line(spec, {}, entrypoint=["in"], arguments=["arg"]) == line


def test_conditions_keep_others_and_the_time_they_changed():
    spec = {"containers": [{"name": "main"}], "readinessGates": [{"conditionType": "gate"}]}
    known = [
        {"type": "gate", "status": "False"},
        {"type": "Initialized", "status": "True", "lastTransitionTime": "before"},
    ]
    obj = {"metadata": {}, "spec": spec, "status": {"conditions": known}}
    life = pod(container(run=running(), started=True, ready=True))
    status = compose(obj, life, StatusFacts(host_ip="h"), now=NOW)
    found = {one["type"]: one for one in status["conditions"]}
    assert found["gate"]["status"] == "False"
    assert found["ContainersReady"]["status"] == "True"
    assert found["Ready"]["status"] == "False"
    assert found["Initialized"]["lastTransitionTime"] == "before"
