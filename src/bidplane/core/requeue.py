"""
Bringing an evicted pod back.

A pod with a controller is replaced by it. A bare pod would be gone for good, though its
agent only lost the GPUs, not the wish to run it. So before a bare pod is evicted its
likeness is kept in a PodTemplate (a stock kind made for this), and when the pod has
left, a pod like it takes its name and bids again. Written down first, it survives a
crash at any point.
"""

from __future__ import annotations

from typing import Any

from bidplane.api import labels
from bidplane.api.kinds import Object


def kept_name(uid: str) -> str:
    """Of the PodTemplate that holds the likeness of the pod with this uid."""
    return f"requeue-{uid}"


def is_bare(pod: Object) -> bool:
    owners = pod["metadata"].get("ownerReferences") or ()
    return not any(owner.get("controller") for owner in owners)


def evictions(pod: Object) -> int:
    """How often the pod was evicted; what cannot be read is no reason not to evict it."""
    text = str((pod["metadata"].get("annotations") or {}).get(labels.EVICTIONS, ""))
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def template(pod: Object) -> dict[str, Any]:
    metadata = pod["metadata"]
    annotations = dict(metadata.get("annotations") or {})
    annotations[labels.EVICTIONS] = str(evictions(pod) + 1)
    if labels.BUDGET in annotations:
        annotations.setdefault(labels.WORK, metadata["uid"])  # what was spent is spent
    # What was said of the life that ends; only how far it got is worth keeping.
    for said in (labels.NOTICE, labels.CHECKPOINT, labels.PENDING):
        annotations.pop(said, None)
    if labels.SIMULATED_SAVED in annotations:
        annotations[labels.SIMULATED_DONE] = annotations.pop(labels.SIMULATED_SAVED)
    spec = {
        key: value
        for key, value in pod["spec"].items()
        if key not in ("nodeName", "serviceAccount", "ephemeralContainers")
    }
    return {
        "apiVersion": "v1",
        "kind": "PodTemplate",
        "metadata": {
            "name": kept_name(metadata["uid"]),
            "namespace": metadata["namespace"],
            "labels": {labels.REQUEUE: "true"},
            "annotations": {labels.POD_NAME: metadata["name"], labels.POD_UID: metadata["uid"]},
        },
        "template": {
            "metadata": {
                "labels": dict(metadata.get("labels") or {}),
                "annotations": annotations,
            },
            "spec": spec,
        },
    }


def revived(kept: Object) -> dict[str, Any]:
    """The pod to create from a kept template."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **kept["template"]["metadata"],
            "name": kept["metadata"]["annotations"][labels.POD_NAME],
            "namespace": kept["metadata"]["namespace"],
        },
        "spec": kept["template"]["spec"],
    }
