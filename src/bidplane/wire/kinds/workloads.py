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
    template = (obj.get("spec") or {}).get("template")
    return template if isinstance(template, dict) else None


def _default_template(obj: dict[str, Any]) -> None:
    template = _template(obj)
    if template is not None and isinstance(template.get("spec"), dict):
        template.setdefault("metadata", {})
        pods.default_spec(template["spec"])


def _validate_template(obj: Object) -> list[Cause]:
    template = (obj.get("spec") or {}).get("template") or {}
    return pods.spec_problems(template.get("spec") or {}, "spec.template.spec")


def _validate_selecting(obj: Object) -> list[Cause]:
    """Validate the template, the selector and the counts of a kind with a selector."""
    causes = _validate_template(obj)
    spec = obj.get("spec") or {}
    causes += _not_negative(spec, "replicas", "minReadySeconds", "revisionHistoryLimit")
    selector = spec.get("selector")
    if not selector:
        return [Cause("Required value", "spec.selector", "FieldValueRequired"), *causes]
    labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels") or {}
    match_labels = selector.get("matchLabels") or {}
    if any(labels.get(key) != value for key, value in match_labels.items()):
        encoded = msgspec.json.encode(labels, order="sorted").decode()
        message = f"Invalid value: {encoded}: `selector` does not match template `labels`"
        causes.append(Cause(message, "spec.template.metadata.labels"))
    return causes


def _not_negative(spec: Object, *fields: str) -> list[Cause]:
    rule = "must be greater than or equal to 0"
    return [
        Cause(f"Invalid value: {spec[field]}: {rule}", f"spec.{field}")
        for field in fields
        if spec.get(field, 0) < 0
    ]


def _same_selector(new: Object, old: Object) -> list[Cause]:
    if new["spec"].get("selector") == old["spec"].get("selector"):
        return []
    encoded = msgspec.json.encode(new["spec"].get("selector"), order="sorted").decode()
    return [Cause(f"Invalid value: {encoded}: field is immutable", "spec.selector")]


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
    causes = _validate_selecting(obj)
    if strategy.get("type") == "Recreate" and strategy.get("rollingUpdate") is not None:
        message = "Forbidden: may not be specified when strategy `type` is 'Recreate'"
        causes.append(Cause(message, "spec.strategy.rollingUpdate", "FieldValueForbidden"))
    elif strategy.get("type") not in ("Recreate", "RollingUpdate"):
        message = f'Unsupported value: "{strategy.get("type")}": supported values: "Recreate",'
        path = "spec.strategy.type"
        causes.append(Cause(f'{message} "RollingUpdate"', path, "FieldValueNotSupported"))
    return causes


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
    causes = _same_selector(new, old)
    for field in ("serviceName", "podManagementPolicy", "volumeClaimTemplates"):
        if new["spec"].get(field) != old["spec"].get(field):
            value = new["spec"].get(field)
            encoded = f'"{value}"' if isinstance(value, str) else "null"
            causes.append(Cause(f"Invalid value: {encoded}: field is immutable", f"spec.{field}"))
    return causes


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
    causes = []
    if not schedule:
        causes.append(Cause("Required value", "spec.schedule", "FieldValueRequired"))
    elif "TZ" in schedule:
        message = f'Invalid value: "{schedule}": cannot use TZ or CRON_TZ in schedule, use timeZone'
        causes.append(Cause(f"{message} field instead", "spec.schedule"))
    else:
        try:
            cron.parse(schedule)
        except ValueError as error:
            causes.append(Cause(f'Invalid value: "{schedule}": {error}', "spec.schedule"))
    if "timeZone" in spec and not _is_zone(spec["timeZone"]):
        message = f'Invalid value: "{spec["timeZone"]}": unknown time zone {spec["timeZone"]}'
        causes.append(Cause(message, "spec.timeZone"))
    policies = ("Allow", "Forbid", "Replace")
    if spec.get("concurrencyPolicy") not in policies:
        allowed = ", ".join(f'"{policy}"' for policy in policies)
        message = (
            f'Unsupported value: "{spec.get("concurrencyPolicy")}": supported values: {allowed}'
        )
        causes.append(Cause(message, "spec.concurrencyPolicy", "FieldValueNotSupported"))
    causes += _not_negative(
        spec, "startingDeadlineSeconds", "successfulJobsHistoryLimit", "failedJobsHistoryLimit"
    )
    path = "spec.jobTemplate.spec.template.spec"
    return causes + _ends(((job.get("template") or {}).get("spec")) or {}, path)


def _is_zone(name: str) -> bool:
    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True


def _ends(spec: Object, path: str) -> list[Cause]:
    """Validate a Job's pod spec: its pods must end some day."""
    causes = pods.spec_problems(spec, path)
    policy = spec.get("restartPolicy")
    if policy == "Always":
        message = 'Required value: valid values: "OnFailure", "Never"'
        causes.append(Cause(message, f"{path}.restartPolicy", "FieldValueRequired"))
    return causes


def _default_job(obj: dict[str, Any]) -> None:
    spec = obj.setdefault("spec", {})
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    spec.setdefault("parallelism", 1)
    # With a limit for each index there is none for all of them together.
    spec.setdefault("backoffLimit", 6 if "backoffLimitPerIndex" not in spec else 2**31 - 1)
    for rule in (spec.get("podFailurePolicy") or {}).get("rules") or ():
        for condition in rule.get("onPodConditions") or ():
            condition.setdefault("status", "True")
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    # A failure policy needs the pod's final state.
    replacement = "Failed" if spec.get("podFailurePolicy") else "TerminatingOrFailed"
    spec.setdefault("podReplacementPolicy", replacement)
    spec.setdefault("manualSelector", False)
    _default_template(obj)


def _create_job(obj: dict[str, Any]) -> None:
    """Set the selector of a Job: its own uid, unless its author chose another."""
    obj["status"] = {}
    spec, metadata = obj.get("spec") or {}, obj["metadata"]
    template = spec.get("template")
    if spec.get("manualSelector") or spec.get("selector") or not isinstance(template, dict):
        return
    uid, name = metadata["uid"], metadata.get("name", "")
    template_metadata = template.setdefault("metadata", {})
    template_metadata["labels"] = {
        **(template_metadata.get("labels") or {}),
        "batch.kubernetes.io/controller-uid": uid,
        "batch.kubernetes.io/job-name": name,
        "controller-uid": uid,
        "job-name": name,
    }
    spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    if not metadata.get("labels"):
        metadata["labels"] = dict(template_metadata["labels"])


def _validate_job(obj: Object) -> list[Cause]:
    spec = obj.get("spec") or {}
    causes = _not_negative(
        spec,
        *("parallelism", "completions", "activeDeadlineSeconds", "backoffLimit"),
        *("ttlSecondsAfterFinished", "backoffLimitPerIndex", "maxFailedIndexes"),
    )
    if spec.get("completionMode") == "Indexed" and "completions" not in spec:
        message = "Required value: when completion mode is Indexed"
        causes.append(Cause(message, "spec.completions", "FieldValueRequired"))
    if "backoffLimitPerIndex" in spec and spec.get("completionMode") != "Indexed":
        message = f"Invalid value: {spec['backoffLimitPerIndex']}: requires indexed completion mode"
        causes.append(Cause(message, "spec.backoffLimitPerIndex"))
    return causes + _ends((spec.get("template") or {}).get("spec") or {}, "spec.template.spec")


_JOB_FIXED = ("selector", "completionMode", "podFailurePolicy", "backoffLimitPerIndex")


def _change_job(new: Object, old: Object) -> list[Cause]:
    before, after = old["spec"], new["spec"]
    causes = []
    # An Indexed Job may be resized if its parallelism equals its completions.
    elastic = after.get("completionMode") == "Indexed" and after.get("completions") == after.get(
        "parallelism"
    )
    fixed = _JOB_FIXED if elastic else ("completions", *_JOB_FIXED)
    for field in fixed:
        if after.get(field) != before.get(field):
            value = after.get(field)
            encoded = value if isinstance(value, int) else "null" if value is None else f'"{value}"'
            causes.append(Cause(f"Invalid value: {encoded}: field is immutable", f"spec.{field}"))
    has_not_started = before.get("suspend") and not (old.get("status") or {}).get("startTime")
    if not has_not_started and after.get("template") != before.get("template"):
        causes.append(Cause("Invalid value: null: field is immutable", "spec.template"))
    return causes


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
    validate=_validate_selecting,
    change=_same_selector,
    generation=True,
)
STATEFUL_SET = Rules(
    default=_default_stateful_set,
    validate=_validate_selecting,
    change=_change_stateful_set,
    generation=True,
)
CRON_JOB = Rules(
    default=_default_cron_job, create=_no_status, validate=_validate_cron_job, generation=True
)
DAEMON_SET = Rules(
    default=_default_daemon_set,
    create=_create_daemon_set,
    validate=_validate_selecting,
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
