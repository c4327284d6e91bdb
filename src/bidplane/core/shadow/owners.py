"""A pod's owner as people know it: the Deployment behind a ReplicaSet, the CronJob of a Job."""

from __future__ import annotations

import re

# The suffix that the Deployment controller gives to ReplicaSets, and the CronJob controller (the
# minutes since the epoch) to Jobs.
_TEMPLATE_HASH = re.compile(r"-[bcdfghjklmnpqrstvwxz2456789]{5,10}$")
_CRON_MINUTES = re.compile(r"-[0-9]{8,10}$")


def owner_of(kind: str, name: str, *, pod: str) -> str:
    """Return `Kind/name` of a pod's owner; the pod itself if it has none."""
    if not kind or kind == "<none>" or not name:
        return f"Pod/{pod}"
    if kind == "ReplicaSet" and _TEMPLATE_HASH.search(name):
        return f"Deployment/{_TEMPLATE_HASH.sub('', name)}"
    if kind == "Job" and _CRON_MINUTES.search(name):
        return f"CronJob/{_CRON_MINUTES.sub('', name)}"
    return f"{kind}/{name}"
