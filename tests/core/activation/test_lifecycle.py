"""The steps of waking and sleeping, and the promise that no request meets a pod that is leaving."""

import json

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from bidplane.api import labels
from bidplane.api.endpoint import Demand, EndpointPhase, EndpointSpec, EndpointStatus
from bidplane.api.endpoint import EndpointTarget as Target
from bidplane.api.views import Pod
from bidplane.core.activation.hostassignment import HostAssignment
from bidplane.core.activation.lifecycle import Observed, plan, start_problem

CLAIM = HostAssignment(("llm.alice.example",))
SPEC = EndpointSpec(target=Target(deployment="llm", service="llm"), replicas=2)
SERVICE = {
    "metadata": {"name": "llm"},
    "spec": {"selector": {"app": "llm"}, "ports": [{"port": 80, "targetPort": "http"}]},
}


def deployment(replicas, **labels):
    template = {"metadata": {"labels": labels or {"app": "llm"}}}
    return {"metadata": {"name": "llm"}, "spec": {"replicas": replicas, "template": template}}


def pod(name="llm-1", *, ip="10.0.0.1", ready=True, leaving=False, status=None, notes=None):
    container = {"name": "main", "ports": [{"name": "http", "containerPort": 8000}]}
    conditions = [{"type": "Ready", "status": str(ready)}]
    metadata = {"name": name, "annotations": notes or {}}
    if leaving:
        metadata["deletionTimestamp"] = "2026-11-18T20:00:00Z"
    return Pod(
        {
            "metadata": metadata,
            "spec": {"containers": [container]},
            "status": {"phase": "Running", "podIP": ip, "conditions": conditions, **(status or {})},
        }
    )


def step(replicas, pods=(), *, awake=None, number=2, answers=1, spec=SPEC, **observed):
    demand = None if awake is None else Demand(number=number, awake=awake)
    addresses = {p.name: p.status["podIP"] for p in pods}
    known = {
        "deployment": deployment(replicas),
        "service": SERVICE,
        "pods": pods,
        "addresses": addresses,
        **observed,
    }
    return plan(spec, CLAIM, Observed(**known), EndpointStatus(demand=demand, answers=answers))


def test_from_asleep_to_ready_and_back():
    asleep = step(0, awake=False)
    assert (asleep.status.phase, asleep.replicas, asleep.status.answers) == ("Asleep", None, 2)
    wake = step(0, awake=True)
    assert (wake.status.phase, wake.replicas, wake.status.answers) == ("Waking", 2, 2)
    waking = step(2, [pod(ready=False)], awake=True)
    assert (waking.status.phase, waking.replicas) == ("Waking", None)
    assert [(b.address, b.port, b.ready) for b in waking.status.backends] == [
        ("10.0.0.1", 8000, False)
    ]
    ready = step(2, [pod()], awake=True)
    assert (ready.status.phase, ready.status.host) == ("Ready", "llm.alice.example")
    stop = step(2, [pod()], awake=False, number=3, answers=2)
    assert (stop.status.phase, stop.replicas, stop.status.answers) == ("Stopping", 0, 3)
    assert not stop.status.backends
    assert step(0, [pod()], awake=False).status.phase == "Stopping"
    assert step(0, [pod(leaving=True)], awake=False).status.phase == "Asleep"


def test_a_wake_waits_until_every_pod_of_the_last_life_is_leaving():
    waiting = step(0, [pod(), pod("llm-2", leaving=True)], awake=True, number=4, answers=3)
    assert (waiting.status.phase, waiting.replicas, waiting.status.answers) == ("Stopping", None, 3)
    assert step(0, [pod(leaving=True)], awake=True).replicas == 2


def test_before_any_demand_nothing_is_scaled():
    assert step(3, [pod()]).replicas is None
    assert step(3, [pod()]).status.phase == "Ready"
    assert step(0).replicas is None


@given(
    replicas=st.integers(0, 3),
    pods=st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), max_size=4),
    awake=st.sampled_from([None, True, False]),
    answers=st.integers(1, 2),
)
def test_no_backend_is_leaving_and_none_is_shown_for_a_stale_demand(replicas, pods, awake, answers):
    observed = [
        pod(f"llm-{i}", ready=ready, leaving=leaving, ip="10.0.0.1" if has_ip else "")
        for i, (ready, leaving, has_ip) in enumerate(pods)
    ]
    result = step(replicas, observed, awake=awake, answers=answers)
    leaving = {p.name for p in observed if p.is_deleted}
    assert not leaving & {backend.pod for backend in result.status.backends}
    if result.status.backends:
        assert replicas > 0
        assert awake is not False
    if result.replicas:  # whoever is alive now would be used in the new life, and deleted
        assert leaving == {p.name for p in observed}
    if awake is not None and result.status.answers != 2:
        assert not result.status.backends
        assert result.replicas is None
    # A step that was carried out is not taken again, and leads on.
    again = step(
        replicas if result.replicas is None else result.replicas, observed, awake=awake, answers=2
    )
    assert again.replicas is None


def refused(**change):
    return step(0, **change).status


def test_targets_that_cannot_be_served_are_refused_by_name():
    def service(**spec):
        return {"metadata": {"name": "llm"}, "spec": {**SERVICE["spec"], **spec}}

    two = [{"port": 80, "name": "http"}, {"port": 90, "name": "metrics"}]
    port_99 = msgspec.structs.replace(SPEC, target=Target(deployment="llm", service="llm", port=99))
    for status, reason, part in [
        (refused(deployment=None), "NoDeployment", "llm"),
        (refused(service=None), "NoService", "llm"),
        (refused(service=service(selector={})), "NoSelector", "llm"),
        (refused(service=service(ports=[])), "NoSuchPort", "no ports"),
        (refused(service=service(ports=two)), "NoSuchPort", "80 http, 90 metrics"),
        (refused(spec=port_99), "NoSuchPort", "not 99"),
        (refused(service=service(selector={"app": "b"})), "SelectsOthers", "labels"),
    ]:
        assert (status.phase, status.reason) == (EndpointPhase.REFUSED, reason)
        assert part in status.message
    by_name = msgspec.structs.replace(
        SPEC, target=Target(deployment="llm", service="llm", port_name="metrics")
    )
    served = step(1, [pod()], awake=True, spec=by_name, service=service(ports=two))
    assert served.status.phase is not EndpointPhase.REFUSED
    taken = plan(
        SPEC,
        HostAssignment(reason="HostTaken", message="m"),
        Observed(None, None, [], {}),
        EndpointStatus(),
    )
    assert (taken.status.phase, taken.status.reason) == ("Refused", "HostTaken")


def waiting(reason, **last):
    state = {"name": "main", "state": {"waiting": {"reason": reason}}}
    return pod(ready=False, status={"containerStatuses": [{**state, **last}]})


def explained(reason):
    return pod(ready=False, notes={labels.PENDING: json.dumps({"reason": reason, "message": "m"})})


def test_reasons_of_pods_that_do_not_start():
    crash = waiting("CrashLoopBackOff", lastState={"terminated": {"exitCode": 3}})
    problem = start_problem([crash])
    assert (problem.reason, problem.failed) == ("CrashLoopBackOff", True)
    assert "exit code 3" in problem.message
    assert start_problem([waiting("ErrImagePull")]).failed
    assert not start_problem([waiting("ContainerCreating")]).failed
    assert start_problem([explained("WalletTooSmall")]).failed
    assert not start_problem([explained("Outbid")]).failed
    assert start_problem([explained("Outbid")]).reason == "Outbid"
    # One pod that may still start is worth waiting for.
    assert not start_problem([crash, explained("Outbid")]).failed
    assert start_problem([], "exceeded quota").failed
    assert not start_problem([]).failed
    broken_note = pod(ready=False, notes={labels.PENDING: "{"})
    assert not start_problem([broken_note]).failed
