"""Cells of the kinds that are listed less often: bindings, sets, jobs, budgets, quotas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bidplane.wire.selectors import selector_text
from bidplane.wire.table.human import age, duration, seconds

Object = Mapping[str, Any]
NONE = "<none>"


def _head(obj: Object, now: float) -> tuple[str, str]:
    meta = obj["metadata"]
    return str(meta["name"]), age(meta.get("creationTimestamp"), now)


def _containers(spec: Mapping[str, Any]) -> tuple[str, str]:
    containers = ((spec.get("template") or {}).get("spec") or {}).get("containers") or ()
    return (
        ",".join(container.get("name", "") for container in containers),
        ",".join(container.get("image", "") for container in containers),
    )


def binding(obj: Object, now: float) -> list[Any]:
    name, old = _head(obj, now)
    role = obj.get("roleRef") or {}
    subjects = obj.get("subjects") or ()

    def named(kind: str) -> str:
        return ", ".join(subject["name"] for subject in subjects if subject.get("kind") == kind)

    accounts = ", ".join(
        f"{subject.get('namespace', '')}/{subject['name']}"
        for subject in subjects
        if subject.get("kind") == "ServiceAccount"
    )
    refers = f"{role.get('kind')}/{role.get('name')}"
    return [name, refers, old, named("User"), named("Group"), accounts]


def stateful_set(obj: Object, now: float) -> list[Any]:
    name, old = _head(obj, now)
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    ready = f"{status.get('readyReplicas', 0)}/{spec.get('replicas', 0)}"
    return [name, ready, old, *_containers(spec)]


_ENDS = ("Complete", "Failed", "Suspended", "FailureTarget", "SuccessCriteriaMet")


def _job_status(obj: Object, conditions: Iterable[Mapping[str, Any]]) -> str:
    true_types = {
        condition["type"] for condition in conditions if condition.get("status") == "True"
    }
    for end in _ENDS[:2]:
        if end in true_types:
            return end
    if "deletionTimestamp" in obj["metadata"]:
        return "Terminating"
    return next((end for end in _ENDS[2:] if end in true_types), "Running")


def job(obj: Object, now: float) -> list[Any]:
    name, old = _head(obj, now)
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    done = status.get("succeeded", 0)
    if "completions" in spec:
        completions = f"{done}/{spec['completions']}"
    elif spec.get("parallelism", 0) > 1:
        completions = f"{done}/1 of {spec['parallelism']}"
    else:
        completions = f"{done}/1"
    started, ended = seconds(status.get("startTime")), seconds(status.get("completionTime"))
    lasted = "" if started is None else duration((now if ended is None else ended) - started)
    return [
        name,
        _job_status(obj, status.get("conditions") or ()),
        completions,
        lasted,
        old,
        *_containers(spec),
        selector_text(spec.get("selector")) or NONE,
    ]


def cron_job(obj: Object, now: float) -> list[Any]:
    name, old = _head(obj, now)
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    last = status.get("lastScheduleTime")
    template = (spec.get("jobTemplate") or {}).get("spec") or {}
    return [
        name,
        spec.get("schedule", ""),
        spec.get("timeZone") or NONE,
        str(bool(spec.get("suspend"))),
        len(status.get("active") or ()),
        age(last, now) if last else NONE,
        old,
        *_containers(template),
        selector_text(template.get("selector")) or NONE,
    ]


def disruption_budget(obj: Object, now: float) -> list[Any]:
    name, old = _head(obj, now)
    spec = obj.get("spec") or {}
    least, most = (str(spec.get(key, "N/A")) for key in ("minAvailable", "maxUnavailable"))
    return [name, least, most, (obj.get("status") or {}).get("disruptionsAllowed", 0), old]


def priority_class(obj: Object, now: float) -> list[Any]:
    name, old = _head(obj, now)
    policy = obj.get("preemptionPolicy", "")
    return [name, obj.get("value", 0), bool(obj.get("globalDefault")), old, policy]


def quota(obj: Object, now: float) -> list[Any]:
    name, old = _head(obj, now)
    status = obj.get("status") or {}
    hard, used = status.get("hard") or {}, status.get("used") or {}

    def listed(limits: bool) -> str:
        return ", ".join(
            f"{key}: {used.get(key, '0')}/{hard[key]}"
            for key in sorted(hard)
            if key.startswith("limits.") == limits
        )

    return [name, listed(False), listed(True), old]


def certificate_request(obj: Object, now: float) -> list[Any]:
    name, old = _head(obj, now)
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    types = {condition.get("type") for condition in status.get("conditions") or ()}
    states = ["Denied" if "Denied" in types else "Approved" if "Approved" in types else "Pending"]
    if "Failed" in types:
        states.append("Failed")
    if status.get("certificate"):
        states.append("Issued")
    requested_seconds = spec.get("expirationSeconds")
    lasting = NONE if requested_seconds is None else duration(requested_seconds)
    return [
        name,
        old,
        spec.get("signerName") or NONE,
        spec.get("username", ""),
        lasting,
        ",".join(states),
    ]
