"""Kinds that hold a pod template: the template's defaults, and their own."""

from __future__ import annotations

from typing import Any

from bidplane.wire.kinds import pods
from bidplane.wire.kinds.rules import Object, Rules
from bidplane.wire.status import Cause


def _template(obj: dict[str, Any]) -> dict[str, Any] | None:
    found = (obj.get("spec") or {}).get("template")
    return found if isinstance(found, dict) else None


def _default_template(obj: dict[str, Any]) -> None:
    template = _template(obj)
    if template is not None and isinstance(template.get("spec"), dict):
        pods.default_spec(template["spec"])


def _validate_template(obj: Object) -> list[Cause]:
    template = (obj.get("spec") or {}).get("template") or {}
    return pods.spec_problems(template.get("spec") or {}, "spec.template.spec")


def _selected(obj: Object) -> list[Cause]:
    found = _validate_template(obj)
    spec = obj.get("spec") or {}
    selector = spec.get("selector")
    if not selector:
        return [Cause("Required value", "spec.selector", "FieldValueRequired"), *found]
    labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels") or {}
    wanted = selector.get("matchLabels") or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        words = f"Invalid value: {labels}: `selector` does not match template `labels`"
        found.append(Cause(words, "spec.template.metadata.labels"))
    return found


def _same_selector(new: Object, old: Object) -> list[Cause]:
    if new["spec"].get("selector") == old["spec"].get("selector"):
        return []
    return [Cause("Invalid value: field is immutable", "spec.selector")]


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


def _default_cron_job(obj: dict[str, Any]) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("concurrencyPolicy", "Allow")
    spec.setdefault("suspend", False)
    spec.setdefault("successfulJobsHistoryLimit", 3)
    spec.setdefault("failedJobsHistoryLimit", 1)
    template = (spec.get("jobTemplate") or {}).get("spec")
    if isinstance(template, dict):
        _default_template(spec["jobTemplate"])


def _default_job(obj: dict[str, Any]) -> None:
    spec = obj.setdefault("spec", {})
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    spec.setdefault("parallelism", 1)
    spec.setdefault("backoffLimit", 6)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    # A policy judges how a pod ended: it must have ended.
    patient = "Failed" if spec.get("podFailurePolicy") else "TerminatingOrFailed"
    spec.setdefault("podReplacementPolicy", patient)
    spec.setdefault("manualSelector", False)
    _default_template(obj)


def _create_job(obj: dict[str, Any]) -> None:
    """A Job finds its pods by its own uid, unless its author says otherwise."""
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


def _validate_job(obj: Object) -> list[Cause]:
    found = _validate_template(obj)
    template = ((obj.get("spec") or {}).get("template") or {}).get("spec") or {}
    if template.get("restartPolicy") == "Always":
        words = 'Unsupported value: "Always": supported values: "OnFailure", "Never"'
        path = "spec.template.spec.restartPolicy"
        found.append(Cause(words, path, "FieldValueNotSupported"))
    return found


def _default_pod_template(obj: dict[str, Any]) -> None:
    spec = (obj.get("template") or {}).get("spec")
    if isinstance(spec, dict):
        pods.default_spec(spec)


TEMPLATED = Rules(
    default=_default_template, validate=_selected, change=_same_selector, generation=True
)
REPLICA_SET = Rules(
    default=_default_replicas, validate=_selected, change=_same_selector, generation=True
)
STATEFUL_SET = Rules(
    default=_default_stateful_set, validate=_selected, change=_same_selector, generation=True
)
CRON_JOB = Rules(default=_default_cron_job, generation=True)
DEPLOYMENT = Rules(
    default=_default_deployment, validate=_selected, change=_same_selector, generation=True
)
JOB = Rules(default=_default_job, create=_create_job, validate=_validate_job, generation=True)
POD_TEMPLATE = Rules(default=_default_pod_template)
