"""A Job's podFailurePolicy: what a failed pod means, by the first rule that fits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bidplane.api.kinds import Object
from bidplane.core.workloads.common import condition, meta, status_of


def verdict(job: Object, pod: Object) -> tuple[str, str]:
    """`Count`, `Ignore` or `FailJob`, and in words why."""
    rules = (job["spec"].get("podFailurePolicy") or {}).get("rules") or ()
    for index, rule in enumerate(rules):
        why = _by_exit_code(rule, pod) or _by_condition(rule, pod)
        if why:
            action = rule["action"]
            return action, f"{why} matching {action} rule at index {index}"
    return "Count", ""


def _by_exit_code(rule: Mapping[str, Any], pod: Object) -> str:
    wanted = rule.get("onExitCodes")
    if not wanted:
        return ""
    status = status_of(pod)
    for container in [
        *(status.get("initContainerStatuses") or ()),
        *(status.get("containerStatuses") or ()),
    ]:
        if wanted.get("containerName") not in (None, container["name"]):
            continue
        code = ((container.get("state") or {}).get("terminated") or {}).get("exitCode")
        if not code:  # running, or ended well
            continue
        if (code in wanted["values"]) == (wanted["operator"] == "In"):
            name = f"{meta(pod)['namespace']}/{meta(pod)['name']}"
            return f"Container {container['name']} for pod {name} failed with exit code {code}"
    return ""


def _by_condition(rule: Mapping[str, Any], pod: Object) -> str:
    for wanted in rule.get("onPodConditions") or ():
        found = condition(pod, wanted["type"])
        if found is not None and found.get("status") == wanted.get("status", "True"):
            return (
                f"Pod {meta(pod)['namespace']}/{meta(pod)['name']} has condition {wanted['type']}"
            )
    return ""
