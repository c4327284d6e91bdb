"""
autoscaling/v1: one number where v2 has metrics; all else of v2 travels in annotations.

The annotations have upstream's names and hold v2's own JSON, so that a client of v1 that sends back
what it got loses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

_PREFIX = "autoscaling.alpha.kubernetes.io/"
_CPU = "targetCPUUtilizationPercentage"


def _is_cpu(metric: Mapping[str, Any]) -> bool:
    resource = metric.get("resource") or {}
    target = resource.get("target") or {}
    return (
        metric.get("type") == "Resource"
        and resource.get("name") == "cpu"
        and target.get("type") == "Utilization"
    )


def to_v1(obj: dict[str, Any]) -> dict[str, Any]:
    """Convert an autoscaler of v2 to v1."""
    spec, status = dict(obj.get("spec") or {}), dict(obj.get("status") or {})
    metrics, notes = spec.pop("metrics", None) or [], {}
    cpu = next((metric for metric in metrics if _is_cpu(metric)), None)
    if cpu is not None:
        spec[_CPU] = cpu["resource"]["target"].get("averageUtilization")
    if other_metrics := [metric for metric in metrics if metric is not cpu]:
        notes["metrics"] = other_metrics
    if behavior := spec.pop("behavior", None):
        notes["behavior"] = behavior
    if conditions := status.pop("conditions", None):
        notes["conditions"] = conditions
    current = status.pop("currentMetrics", None) or []
    cpu_metric = next(
        (metric for metric in current if (metric.get("resource") or {}).get("name") == "cpu"), None
    )
    if cpu_metric is not None:
        used = (cpu_metric["resource"].get("current") or {}).get("averageUtilization")
        if used is not None:
            status["currentCPUUtilizationPercentage"] = used
    if current:
        notes["current-metrics"] = current
    status.setdefault("currentReplicas", 0)
    status.setdefault("desiredReplicas", 0)
    meta = dict(obj["metadata"])
    if notes:
        encoded = {
            f"{_PREFIX}{key}": msgspec.json.encode(note).decode() for key, note in notes.items()
        }
        meta["annotations"] = {**(meta.get("annotations") or {}), **encoded}
    return {**obj, "metadata": meta, "spec": spec, "status": status}


def to_v2(obj: dict[str, Any]) -> dict[str, Any]:
    """Convert an autoscaler of v1 to v2."""
    spec, status = dict(obj.get("spec") or {}), dict(obj.get("status") or {})
    meta = dict(obj.get("metadata") or {})
    annotations = dict(meta.get("annotations") or {})
    notes = {}
    for key in ("metrics", "behavior", "conditions", "current-metrics"):
        try:
            notes[key] = msgspec.json.decode(annotations.pop(f"{_PREFIX}{key}", "null"))
        except msgspec.DecodeError:
            notes[key] = None
    if annotations:
        meta["annotations"] = annotations
    else:
        meta.pop("annotations", None)
    metrics = list(notes["metrics"] or ())
    percentage = spec.pop(_CPU, None)
    if percentage is not None:
        target = {"type": "Utilization", "averageUtilization": percentage}
        metrics.insert(0, {"type": "Resource", "resource": {"name": "cpu", "target": target}})
    if metrics:
        spec["metrics"] = metrics
    if notes["behavior"]:
        spec["behavior"] = notes["behavior"]
    status.pop("currentCPUUtilizationPercentage", None)
    for field, key in (("conditions", "conditions"), ("currentMetrics", "current-metrics")):
        if notes[key]:
            status[field] = notes[key]
    converted = {**obj, "metadata": meta, "spec": spec}
    if status:
        converted["status"] = status
    return converted
