"""Kinds that hold a pod template: the template's defaults, and their own."""

from __future__ import annotations

import zoneinfo
from typing import Any

import msgspec

from bidplane.wire import cron
from bidplane.wire.kinds import pods
from bidplane.wire.kinds.rules import Object, Rules
from bidplane.wire.status import Cause


def _template(obj: dict[str, Any]) -> dict[str, Any] | None:
    found = (obj.get("spec") or {}).get("template")
    return found if isinstance(found, dict) else None


def _default_template(obj: dict[str, Any]) -> None:
    template = _template(obj)
    if template is not None and isinstance(template.get("spec"), dict):
        template.setdefault("metadata", {})
        pods.default_spec(template["spec"])


def _validate_template(obj: Object) -> list[Cause]:
    template = (obj.get("spec") or {}).get("template") or {}
    return pods.spec_problems(template.get("spec") or {}, "spec.template.spec")


def _selected(obj: Object) -> list[Cause]:
    found = _validate_template(obj)
    spec = obj.get("spec") or {}
    found += _not_negative(spec, "replicas", "minReadySeconds", "revisionHistoryLimit")
    selector = spec.get("selector")
    if not selector:
        return [Cause("Required value", "spec.selector", "FieldValueRequired"), *found]
    labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels") or {}
    wanted = selector.get("matchLabels") or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        said = msgspec.json.encode(labels, order="sorted").decode()
        words = f"Invalid value: {said}: `selector` does not match template `labels`"
        found.append(Cause(words, "spec.template.metadata.labels"))
    return found


def _not_negative(spec: Object, *fields: str) -> list[Cause]:
    words = "must be greater than or equal to 0"
    return [
        Cause(f"Invalid value: {spec[field]}: {words}", f"spec.{field}")
        for field in fields
        if spec.get(field, 0) < 0
    ]


def _same_selector(new: Object, old: Object) -> list[Cause]:
    if new["spec"].get("selector") == old["spec"].get("selector"):
        return []
    said = msgspec.json.encode(new["spec"].get("selector"), order="sorted").decode()
    return [Cause(f"Invalid value: {said}: field is immutable", "spec.selector")]


def _default_replicas(obj: dict[str, Any]) -> None:
    obj.setdefault("spec", {}).setdefault("replicas", 1)
    _default_template(obj)


def _default_deployment(obj: dict[str, Any]) -> None:
    _default_replicas(obj)
    spec = obj["spec"]
    strategy = spec.setdefault("strategy", {})
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", "25%")
        rolling.setdefault("maxSurge", "25%")
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)


def _validate_deployment(obj: Object) -> list[Cause]:
    strategy = (obj.get("spec") or {}).get("strategy") or {}
    found = _selected(obj)
    if strategy.get("type") == "Recreate" and strategy.get("rollingUpdate") is not None:
        words = "Forbidden: may not be specified when strategy `type` is 'Recreate'"
        found.append(Cause(words, "spec.strategy.rollingUpdate", "FieldValueForbidden"))
    elif strategy.get("type") not in ("Recreate", "RollingUpdate"):
        words = f'Unsupported value: "{strategy.get("type")}": supported values: "Recreate",'
        path = "spec.strategy.type"
        found.append(Cause(f'{words} "RollingUpdate"', path, "FieldValueNotSupported"))
    return found


def _default_stateful_set(obj: dict[str, Any]) -> None:
    _default_replicas(obj)
    spec = obj["spec"]
    spec.setdefault("podManagementPolicy", "OrderedReady")
    strategy = spec.setdefault("updateStrategy", {})
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("partition", 0)
        rolling.setdefault("maxUnavailable", 1)
    spec.setdefault("revisionHistoryLimit", 10)
    retention = spec.setdefault("persistentVolumeClaimRetentionPolicy", {})
    retention.setdefault("whenDeleted", "Retain")
    retention.setdefault("whenScaled", "Retain")


def _change_stateful_set(new: Object, old: Object) -> list[Cause]:
    found = _same_selector(new, old)
    for field in ("serviceName", "podManagementPolicy", "volumeClaimTemplates"):
        if new["spec"].get(field) != old["spec"].get(field):
            shown = new["spec"].get(field)
            said = f'"{shown}"' if isinstance(shown, str) else "null"
            found.append(Cause(f"Invalid value: {said}: field is immutable", f"spec.{field}"))
    return found


def _default_daemon_set(obj: dict[str, Any]) -> None:
    _default_template(obj)
    spec = obj.setdefault("spec", {})
    strategy = spec.setdefault("updateStrategy", {})
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", 1)
        rolling.setdefault("maxSurge", 0)


def _create_daemon_set(obj: dict[str, Any]) -> None:
    annotations = obj["metadata"].setdefault("annotations", {})
    annotations["deprecated.daemonset.template.generation"] = "1"


def _default_controller(obj: dict[str, Any]) -> None:
    """A ReplicationController, which takes labels and selector from its template."""
    _default_replicas(obj)
    labels = ((_template(obj) or {}).get("metadata") or {}).get("labels")
    if labels:
        if not obj["metadata"].get("labels"):
            obj["metadata"]["labels"] = dict(labels)
        obj["spec"].setdefault("selector", dict(labels))


def _default_cron_job(obj: dict[str, Any]) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("concurrencyPolicy", "Allow")
    spec.setdefault("suspend", False)
    spec.setdefault("successfulJobsHistoryLimit", 3)
    spec.setdefault("failedJobsHistoryLimit", 1)
    job = spec.get("jobTemplate")
    if isinstance(job, dict):
        job.setdefault("metadata", {})
        if isinstance(job.get("spec"), dict):
            _default_template(job)


def _validate_cron_job(obj: Object) -> list[Cause]:
    spec = obj.get("spec") or {}
    schedule = spec.get("schedule", "")
    job = (spec.get("jobTemplate") or {}).get("spec") or {}
    found = []
    if not schedule:
        found.append(Cause("Required value", "spec.schedule", "FieldValueRequired"))
    elif "TZ" in schedule:
        words = f'Invalid value: "{schedule}": cannot use TZ or CRON_TZ in schedule, use timeZone'
        found.append(Cause(f"{words} field instead", "spec.schedule"))
    else:
        try:
            cron.parse(schedule)
        except ValueError as error:
            found.append(Cause(f'Invalid value: "{schedule}": {error}', "spec.schedule"))
    if "timeZone" in spec and not _is_zone(spec["timeZone"]):
        words = f'Invalid value: "{spec["timeZone"]}": unknown time zone {spec["timeZone"]}'
        found.append(Cause(words, "spec.timeZone"))
    policies = ("Allow", "Forbid", "Replace")
    if spec.get("concurrencyPolicy") not in policies:
        allowed = ", ".join(f'"{one}"' for one in policies)
        words = f'Unsupported value: "{spec.get("concurrencyPolicy")}": supported values: {allowed}'
        found.append(Cause(words, "spec.concurrencyPolicy", "FieldValueNotSupported"))
    found += _not_negative(
        spec, "startingDeadlineSeconds", "successfulJobsHistoryLimit", "failedJobsHistoryLimit"
    )
    path = "spec.jobTemplate.spec.template.spec"
    return found + _ends(((job.get("template") or {}).get("spec")) or {}, path)


def _is_zone(name: str) -> bool:
    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True


def _ends(spec: Object, path: str) -> list[Cause]:
    """What a Job runs must end some day."""
    found = pods.spec_problems(spec, path)
    policy = spec.get("restartPolicy")
    if policy == "Always":
        words = 'Required value: valid values: "OnFailure", "Never"'
        found.append(Cause(words, f"{path}.restartPolicy", "FieldValueRequired"))
    return found


def _default_job(obj: dict[str, Any]) -> None:
    spec = obj.setdefault("spec", {})
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    spec.setdefault("parallelism", 1)
    # Where each index has its own limit, there is none for all of them.
    spec.setdefault("backoffLimit", 6 if "backoffLimitPerIndex" not in spec else 2**31 - 1)
    for rule in (spec.get("podFailurePolicy") or {}).get("rules") or ():
        for condition in rule.get("onPodConditions") or ():
            condition.setdefault("status", "True")
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    # A policy judges how a pod ended: it must have ended.
    patient = "Failed" if spec.get("podFailurePolicy") else "TerminatingOrFailed"
    spec.setdefault("podReplacementPolicy", patient)
    spec.setdefault("manualSelector", False)
    _default_template(obj)


def _create_job(obj: dict[str, Any]) -> None:
    """A Job finds its pods by its own uid, unless its author says otherwise."""
    obj["status"] = {}
    spec, metadata = obj.get("spec") or {}, obj["metadata"]
    template = spec.get("template")
    if spec.get("manualSelector") or spec.get("selector") or not isinstance(template, dict):
        return
    uid, name = metadata["uid"], metadata.get("name", "")
    given = template.setdefault("metadata", {})
    given["labels"] = {
        **(given.get("labels") or {}),
        "batch.kubernetes.io/controller-uid": uid,
        "batch.kubernetes.io/job-name": name,
        "controller-uid": uid,
        "job-name": name,
    }
    spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    if not metadata.get("labels"):
        metadata["labels"] = dict(given["labels"])


def _validate_job(obj: Object) -> list[Cause]:
    spec = obj.get("spec") or {}
    found = _not_negative(
        spec,
        *("parallelism", "completions", "activeDeadlineSeconds", "backoffLimit"),
        *("ttlSecondsAfterFinished", "backoffLimitPerIndex", "maxFailedIndexes"),
    )
    if spec.get("completionMode") == "Indexed" and "completions" not in spec:
        words = "Required value: when completion mode is Indexed"
        found.append(Cause(words, "spec.completions", "FieldValueRequired"))
    if "backoffLimitPerIndex" in spec and spec.get("completionMode") != "Indexed":
        words = f"Invalid value: {spec['backoffLimitPerIndex']}: requires indexed completion mode"
        found.append(Cause(words, "spec.backoffLimitPerIndex"))
    return found + _ends((spec.get("template") or {}).get("spec") or {}, "spec.template.spec")


_JOB_FIXED = ("selector", "completionMode", "podFailurePolicy", "backoffLimitPerIndex")


def _change_job(new: Object, old: Object) -> list[Cause]:
    before, after = old["spec"], new["spec"]
    found = []
    # An indexed Job may grow and shrink while it has as many at once as in all.
    elastic = after.get("completionMode") == "Indexed" and after.get("completions") == after.get(
        "parallelism"
    )
    fixed = _JOB_FIXED if elastic else ("completions", *_JOB_FIXED)
    for field in fixed:
        if after.get(field) != before.get(field):
            shown = after.get(field)
            said = shown if isinstance(shown, int) else "null" if shown is None else f'"{shown}"'
            found.append(Cause(f"Invalid value: {said}: field is immutable", f"spec.{field}"))
    waits = before.get("suspend") and not (old.get("status") or {}).get("startTime")
    if not waits and after.get("template") != before.get("template"):
        found.append(Cause("Invalid value: null: field is immutable", "spec.template"))
    return found


def _default_pod_template(obj: dict[str, Any]) -> None:
    spec = (obj.get("template") or {}).get("spec")
    if isinstance(spec, dict):
        pods.default_spec(spec)


def _no_status(obj: dict[str, Any]) -> None:
    obj["status"] = {}


def _no_replicas(obj: dict[str, Any]) -> None:
    obj["status"] = {"replicas": 0}


REPLICA_SET = Rules(
    default=_default_replicas,
    create=_no_replicas,
    validate=_selected,
    change=_same_selector,
    generation=True,
)
STATEFUL_SET = Rules(
    default=_default_stateful_set,
    validate=_selected,
    change=_change_stateful_set,
    generation=True,
)
CRON_JOB = Rules(
    default=_default_cron_job, create=_no_status, validate=_validate_cron_job, generation=True
)
DAEMON_SET = Rules(
    default=_default_daemon_set,
    create=_create_daemon_set,
    validate=_selected,
    change=_same_selector,
    generation=True,
)
CONTROLLER = Rules(default=_default_controller, create=_no_replicas, generation=True)
DEPLOYMENT = Rules(
    default=_default_deployment,
    create=_no_status,
    validate=_validate_deployment,
    change=_same_selector,
    generation=True,
)
JOB = Rules(
    default=_default_job,
    create=_create_job,
    validate=_validate_job,
    change=_change_job,
    generation=True,
)
POD_TEMPLATE = Rules(default=_default_pod_template, generation=True)
