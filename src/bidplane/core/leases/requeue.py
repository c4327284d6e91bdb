"""
Bringing an evicted bare pod back.

A pod with a controller is replaced by it. A bare pod would be gone for good, though its agent lost
only the GPUs and still wants it to run. So before a bare pod is evicted, a PodTemplate saves it (a
stock kind made for this); when the pod has left, a pod from that template takes its name and bids
again. Because the template is written first, the pod survives a crash at any point.
"""

from __future__ import annotations

from bidplane.api import labels
from bidplane.api.kinds import Draft, Object


def template_name(uid: str) -> str:
    """Return the name of the PodTemplate that saves the pod with this uid."""
    return f"requeue-{uid}"


def is_bare(pod: Object) -> bool:
    """Return whether a pod has no controller that would replace it."""
    owners = pod["metadata"].get("ownerReferences") or ()
    return not any(owner.get("controller") for owner in owners)


def evictions(pod: Object) -> int:
    """Return how often the pod was evicted; 0 if its annotation cannot be read."""
    text = str((pod["metadata"].get("annotations") or {}).get(labels.EVICTIONS, ""))
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def template(pod: Object) -> Draft:
    """Return the PodTemplate that saves a pod about to be evicted."""
    metadata = pod["metadata"]
    annotations = dict(metadata.get("annotations") or {})
    annotations[labels.EVICTIONS] = str(evictions(pod) + 1)
    if labels.BUDGET in annotations:
        annotations.setdefault(
            labels.WORK, metadata["uid"]
        )  # the budget counts what was spent before
    # These describe the run that ends; only its progress carries over.
    for annotation in (labels.NOTICE, labels.CHECKPOINT, labels.PENDING):
        annotations.pop(annotation, None)
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
            "name": template_name(metadata["uid"]),
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


def revived(pod_template: Object) -> Draft:
    """Return the pod to create from the PodTemplate that saved it."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **pod_template["template"]["metadata"],
            "name": pod_template["metadata"]["annotations"][labels.POD_NAME],
            "namespace": pod_template["metadata"]["namespace"],
        },
        "spec": pod_template["template"]["spec"],
    }
