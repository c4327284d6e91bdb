"""Manifests for work: a pod for `bidplane run`, a Job for work with an end. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from bidplane.api import labels
from bidplane.api.kinds import JOB, Object
from bidplane.api.objects import condition_of, has_ended, phase_of, status_of
from bidplane.client.asking import Price, price_text
from bidplane.errors import UserError

CONTAINER = "main"
IMAGE = "local"


class WorkOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The exit code of a command, and why it ended."""

    code: int
    reason: str = ""
    message: str = ""


def pod(
    name: str,
    command: Sequence[str],
    *,
    gpus: int,
    max_price: Price,
    image: str = IMAGE,
    env: Mapping[str, str] | None = None,
    pool: str = "",
    checkpoint_command: str = "",
    annotations: Mapping[str, str] | None = None,
) -> Object:
    """The manifest of a pod that runs `command` on `gpus` GPUs."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "annotations": _annotations(max_price, pool, checkpoint_command, annotations),
        },
        "spec": _spec(command, gpus, image, env),
    }


def job(
    name: str,
    command: Sequence[str],
    *,
    gpus: int,
    max_price: Price,
    seconds: int,
    image: str = IMAGE,
    env: Mapping[str, str] | None = None,
    pool: str = "",
    notes: Mapping[str, str] | None = None,
) -> Object:
    """
    The manifest of a Job that ends after `seconds`, waiting included; evictions do not count as
    failures. `notes` are annotations of the Job itself.
    """
    if seconds < 1:
        raise UserError(f"seconds must be 1 or more, not {seconds}")
    return {
        "apiVersion": JOB.api_version,
        "kind": JOB.kind,
        "metadata": {"name": name, "annotations": dict(notes or {})},
        "spec": {
            "activeDeadlineSeconds": seconds,
            "backoffLimit": 0,
            "podFailurePolicy": {
                "rules": [
                    {
                        "action": "Ignore",
                        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                    }
                ]
            },
            "template": {
                "metadata": {"annotations": _annotations(max_price, pool, "", None)},
                "spec": _spec(command, gpus, image, env),
            },
        },
    }


def _annotations(
    max_price: Price, pool: str, checkpoint: str, extra: Mapping[str, str] | None
) -> dict[str, str]:
    """The annotations of the pod."""
    options = {
        labels.MAX_PRICE: price_text(max_price),
        labels.POOL: pool,
        labels.CHECKPOINT_COMMAND: checkpoint,
    }
    return {**{key: value for key, value in options.items() if value}, **(extra or {})}


def _spec(command: Sequence[str], gpus: int, image: str, env: Mapping[str, str] | None) -> Object:
    """The pod's spec."""
    if gpus < 1:
        raise UserError(f"gpus must be 1 or more, not {gpus}")
    container: dict[str, object] = {
        "name": CONTAINER,
        "image": image,
        "resources": {"limits": {labels.GPU_RESOURCE: str(gpus)}},
    }
    if command:
        container["command"] = list(command)
    if env:
        container["env"] = [{"name": key, "value": value} for key, value in env.items()]
    return {"restartPolicy": "Never", "containers": [container]}


def outcome(pod: Object) -> WorkOutcome | None:
    """The outcome of the pod, or None while it has not ended."""
    if not has_ended(pod):
        return None
    status = status_of(pod)
    details = {"reason": status.get("reason", ""), "message": status.get("message", "")}
    for container in status.get("containerStatuses") or ():
        terminated = (container.get("state") or {}).get("terminated")
        if terminated is not None:
            return WorkOutcome(code=terminated.get("exitCode", 1), **details)
    return WorkOutcome(code=0 if phase_of(pod) == "Succeeded" else 1, **details)


def pending_reason(pod: Object) -> tuple[str, str]:
    """
    The reason and message for which the pod waits; empty when it does not wait, or none is known
    yet.
    """
    condition = condition_of(pod, "PodScheduled")
    if condition is None or condition.get("status") != "False":
        return "", ""
    return condition.get("reason", ""), condition.get("message", "")
