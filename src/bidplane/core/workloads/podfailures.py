"""A Job's podFailurePolicy: the consequence of a failed pod, by the first rule that matches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bidplane.api.kinds import Object
from bidplane.api.objects import condition_of, metadata_of, name_of, namespace_of, status_of


def verdict(job: Object, pod: Object) -> tuple[str, str]:
    """Return `Count` or the action of the first matching rule, and a message with the reason."""
    rules = (job["spec"].get("podFailurePolicy") or {}).get("rules") or ()
    for index, rule in enumerate(rules):
        match = _by_exit_code(rule, pod) or _by_condition(rule, pod)
        if match:
            action = rule["action"]
            return action, f"{match} matching {action} rule at index {index}"
    return "Count", ""


def _by_exit_code(rule: Mapping[str, Any], pod: Object) -> str:
    """Return a message if a container's exit code matches the rule; else ""."""
    requirement = rule.get("onExitCodes")
    if not requirement:
        return ""
    status = status_of(pod)
    for container in [
        *(status.get("initContainerStatuses") or ()),
        *(status.get("containerStatuses") or ()),
    ]:
        if requirement.get("containerName") not in (None, container["name"]):
            continue
        code = ((container.get("state") or {}).get("terminated") or {}).get("exitCode")
        if not code:  # running, or ended well
            continue
        if (code in requirement["values"]) == (requirement["operator"] == "In"):
            name = f"{metadata_of(pod)['namespace']}/{metadata_of(pod)['name']}"
            return f"Container {container['name']} for pod {name} failed with exit code {code}"
    return ""


def _by_condition(rule: Mapping[str, Any], pod: Object) -> str:
    """Return a message if a condition of the pod matches the rule; else ""."""
    for pattern in rule.get("onPodConditions") or ():
        pod_condition = condition_of(pod, pattern["type"])
        if pod_condition is not None and pod_condition.get("status") == pattern.get(
            "status", "True"
        ):
            pod_name = f"{namespace_of(pod)}/{name_of(pod)}"
            return f"Pod {pod_name} has condition {pattern['type']}"
    return ""
