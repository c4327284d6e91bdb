"""Work as ordinary manifests: a pod for `bidplane run`, a Job for work with an end. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from bidplane.api import labels
from bidplane.api.kinds import JOB, Object
from bidplane.client.asking import Price, price_text
from bidplane.errors import UserError

CONTAINER = "main"
IMAGE = "local"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
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
) -> dict[str, Any]:
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
) -> dict[str, Any]:
    """
    Ends after `seconds`, waiting included; being outbid counts for nothing. `notes` are
    annotations of the Job itself.
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
    max_price: Price, pool: str, checkpoint: str, more: Mapping[str, str] | None
) -> dict[str, str]:
    named = {
        labels.MAX_PRICE: price_text(max_price),
        labels.POOL: pool,
        labels.CHECKPOINT_COMMAND: checkpoint,
    }
    return {**{key: value for key, value in named.items() if value}, **(more or {})}


def _spec(
    command: Sequence[str], gpus: int, image: str, env: Mapping[str, str] | None
) -> dict[str, Any]:
    if gpus < 1:
        raise UserError(f"gpus must be 1 or more, not {gpus}")
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": image,
        "resources": {"limits": {labels.GPU_RESOURCE: str(gpus)}},
    }
    if command:
        container["command"] = list(command)
    if env:
        container["env"] = [{"name": key, "value": value} for key, value in env.items()]
    return {"restartPolicy": "Never", "containers": [container]}


def outcome(pod: Object) -> Outcome | None:
    """How the pod ended; None while it has not."""
    status = pod.get("status") or {}
    if status.get("phase") not in ("Succeeded", "Failed"):
        return None
    said = {"reason": status.get("reason", ""), "message": status.get("message", "")}
    for container in status.get("containerStatuses") or ():
        ended = (container.get("state") or {}).get("terminated")
        if ended is not None:
            return Outcome(code=ended.get("exitCode", 1), **said)
    return Outcome(code=0 if status["phase"] == "Succeeded" else 1, **said)


def pending_words(pod: Object) -> tuple[str, str]:
    """Why it waits: reason and message; empty when it does not, or nothing is known yet."""
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition.get("status") == "False":
            return condition.get("reason", ""), condition.get("message", "")
    return "", ""
