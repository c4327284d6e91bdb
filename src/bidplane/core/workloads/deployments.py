"""
A Deployment: one ReplicaSet per template it ever had, and the rollout from the old to the new.

The ReplicaSet of the present template is found by equality, not by name, so that a template used
again (`kubectl rollout undo`) gets its old ReplicaSet back, with a new revision.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from bidplane.api.kinds import DEPLOYMENT, REPLICA_SET, Object
from bidplane.api.objects import (
    annotations_of,
    condition_of,
    controller_of,
    is_deleted,
    metadata_of,
    phase_of,
    status_of,
)
from bidplane.api.times import parse_rfc3339, rfc3339
from bidplane.core.workloads.common import (
    claim,
    owner_reference,
    short_hash,
    status_patch,
    with_condition,
    without,
)
from bidplane.core.workloads.plan import CreateObject, Delete, Patch, RecordEvent, WorkloadPlan

HASH = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"
HISTORY = "deployment.kubernetes.io/revision-history"
DESIRED = "deployment.kubernetes.io/desired-replicas"
MOST = "deployment.kubernetes.io/max-replicas"
_OWN = (
    "kubectl.kubernetes.io/last-applied-configuration",
    REVISION,
    HISTORY,
    DESIRED,
    MOST,
    "deprecated.deployment.rollback.to",
)
_FOREVER = 2**31 - 1  # means no deadline, or no limit


def plan(
    deployment: Object, replica_sets: Sequence[Object], pods: Sequence[Object], *, now: float
) -> WorkloadPlan:
    """Plan for a Deployment; `replica_sets` and `pods` are those of its namespace."""
    claimed = claim(DEPLOYMENT, deployment, REPLICA_SET, replica_sets)
    rollout = _Rollout(deployment, claimed.owned, pods, now)
    rollout.plan.operations.extend(claimed.operations)
    rollout.decide()
    return rollout.plan


class _Rollout:
    """
    The planning of one Deployment. `sizes` starts with each ReplicaSet's size and is then changed.
    """

    def __init__(
        self, deployment: Object, sets: Sequence[Object], pods: Sequence[Object], now: float
    ) -> None:
        self.deployment, self.now, self.pods = deployment, now, pods
        self.spec: Mapping[str, Any] = deployment["spec"]
        self.replicas: int = self.spec.get("replicas", 1)
        self.sets = sorted(sets, key=_age)
        self.template = self.spec["template"]
        self.new = next((s for s in self.sets if _same_template(s, self.template)), None)
        self.old = [s for s in self.sets if s is not self.new]
        self.sizes: dict[str, int] = {
            metadata_of(s)["uid"]: s["spec"].get("replicas", 1) for s in self.sets
        }
        self.conditions = list(status_of(deployment).get("conditions") or ())
        self.collisions = status_of(deployment).get("collisionCount") or 0
        self.plan = WorkloadPlan()
        self.max_surge, self.max_unavailable = _bounds(self.spec, self.replicas)

    def decide(self) -> None:
        """Fill the plan."""
        if is_deleted(self.deployment):
            self._set_status()
            return
        if self.spec.get("paused"):
            self._set_paused(True)
            if self.new is not None:
                self._update_new()
            self._scale_in_proportion()
            self._clean_up()
            self._set_status()
            return
        self._set_paused(False)
        if self._was_scaled():
            if self.new is not None:
                self._update_new()
            self._scale_in_proportion()
            self._set_status()
            return
        if (self.spec.get("strategy") or {}).get("type") == "Recreate":
            self._recreate()
        else:
            self._roll()
        self._set_status()

    # The newest ReplicaSet.

    def _ensure_new(self) -> bool:
        """Return whether the newest ReplicaSet exists; plan its creation if not."""
        if self.new is not None:
            self._update_new()
            return True
        name = f"{metadata_of(self.deployment)['name']}-{self._hash()}"
        revision = self._next_revision()
        labels = {**(self.template.get("metadata") or {}).get("labels", {}), HASH: self._hash()}
        template = copy.deepcopy(dict(self.template))
        template["metadata"] = {**(template.get("metadata") or {}), "labels": labels}
        selector = copy.deepcopy(dict(self.spec["selector"]))
        selector["matchLabels"] = {**(selector.get("matchLabels") or {}), HASH: self._hash()}
        size = self._size_for_new(0)
        obj = {
            "apiVersion": REPLICA_SET.api_version,
            "kind": REPLICA_SET.kind,
            "metadata": {
                "name": name,
                "namespace": metadata_of(self.deployment)["namespace"],
                "labels": labels,
                "annotations": {
                    **self._inherited_annotations(),
                    REVISION: str(revision),
                    **self._bounds_annotations(),
                },
                "ownerReferences": [owner_reference(DEPLOYMENT, self.deployment)],
            },
            "spec": {
                "replicas": size,
                "selector": selector,
                "template": template,
                **(
                    {"minReadySeconds": self.spec["minReadySeconds"]}
                    if self.spec.get("minReadySeconds")
                    else {}
                ),
            },
        }
        self.plan.operations.append(CreateObject(REPLICA_SET, obj, self.deployment))
        self._record_scaling(name, "up", 0, size)
        self._set_progressing("True", "NewReplicaSetCreated", f'Created new replica set "{name}"')
        self._set_revision(revision)
        return False

    def _hash(self) -> str:
        return short_hash(self.template, self.collisions)

    def _update_new(self) -> None:
        """Update the revision and annotations of the newest ReplicaSet."""
        assert self.new is not None
        current = annotations_of(self.new)
        revision = max(self._next_revision(), _revision(self.new))
        desired = {**self._inherited_annotations(), REVISION: str(revision)}
        if current.get(REVISION) and current[REVISION] != str(revision):
            history = [h for h in current.get(HISTORY, "").split(",") if h]
            desired[HISTORY] = ",".join([*history, current[REVISION]])
        change: dict[str, Any] = {}
        if any(current.get(key) != value for key, value in desired.items()):
            change["metadata"] = {"annotations": desired}
        ready = self.spec.get("minReadySeconds", 0)
        if self.new["spec"].get("minReadySeconds", 0) != ready:
            change["spec"] = {"minReadySeconds": ready or None}
        if change:
            self.plan.operations.append(Patch(REPLICA_SET, self.new, change))
        self._set_revision(revision)
        if condition_of(self.deployment, "Progressing") is None:
            name = metadata_of(self.new)["name"]
            self._set_progressing("True", "FoundNewReplicaSet", f'Found new replica set "{name}"')

    def _set_revision(self, revision: int) -> None:
        """Write the revision to the Deployment's annotation."""
        if annotations_of(self.deployment).get(REVISION) != str(revision):
            change = {"metadata": {"annotations": {REVISION: str(revision)}}}
            self.plan.operations.append(Patch(DEPLOYMENT, self.deployment, change))

    def _next_revision(self) -> int:
        return max((_revision(s) for s in self.old), default=0) + 1

    def _inherited_annotations(self) -> dict[str, str]:
        """Return the Deployment's annotations that its ReplicaSets get, too."""
        return without(annotations_of(self.deployment), *_OWN)

    def _bounds_annotations(self) -> dict[str, str]:
        return {DESIRED: str(self.replicas), MOST: str(self.replicas + self.max_surge)}

    # Sizes.

    def _size(self, replica_set: Object) -> int:
        return self.sizes[metadata_of(replica_set)["uid"]]

    def _total(self) -> int:
        return sum(self.sizes.values())

    def _size_for_new(self, current_size: int) -> int:
        """Return the size that the newest ReplicaSet may have now."""
        if (self.spec.get("strategy") or {}).get("type") == "Recreate":
            return self.replicas
        room = self.replicas + self.max_surge - self._total()
        return current_size + max(0, min(room, self.replicas - current_size))

    def _resize(self, replica_set: Object, size: int, *, of_deployment: bool = True) -> bool:
        """Plan a ReplicaSet's size and bounds; return whether its size changes."""
        old_size, current = self._size(replica_set), annotations_of(replica_set)
        annotations = self._bounds_annotations()
        same_bounds = all(current.get(key) == value for key, value in annotations.items())
        if old_size == size and same_bounds:
            return False
        change: dict[str, Any] = {"metadata": {"annotations": annotations}}
        if old_size != size:
            change["spec"] = {"replicas": size}
            self._record_scaling(
                metadata_of(replica_set)["name"],
                "up" if size > old_size else "down",
                old_size,
                size,
            )
        self.sizes[metadata_of(replica_set)["uid"]] = size
        self.plan.operations.append(Patch(REPLICA_SET, replica_set, change))
        return old_size != size

    def _record_scaling(self, name: str, direction: str, old_size: int, size: int) -> None:
        message = f"Scaled {direction} replica set {name} from {old_size} to {size}"
        self.plan.operations.append(RecordEvent(self.deployment, "ScalingReplicaSet", message))

    def _was_scaled(self) -> bool:
        """Return whether `replicas` changed since the ReplicaSets were last sized."""
        return any(
            annotations_of(s).get(DESIRED, str(self.replicas)) != str(self.replicas)
            for s in self.sets
            if self._size(s)
        )

    def _scale_in_proportion(self) -> None:
        """Distribute a change of `replicas` during a rollout over all ReplicaSets with pods."""
        active = [s for s in self.sets if self._size(s)]
        if len(active) <= 1:
            only = active[0] if active else self.new
            if only is not None:
                self._resize(only, self.replicas)
            return
        if self.new is not None and _is_saturated(self.new, self.replicas):
            for replica_set in self.old:
                if self._size(replica_set):
                    self._resize(replica_set, 0)
            return
        rolling = (self.spec.get("strategy") or {}).get("type") != "Recreate"
        if not rolling:
            return
        allowed = self.replicas + self.max_surge if self.replicas else 0
        to_add = allowed - self._total()
        # The largest first; of equals the newest when growing, the oldest when shrinking.
        active.sort(key=_age, reverse=to_add > 0)
        active.sort(key=self._size, reverse=True)
        sizes = {metadata_of(s)["uid"]: self._size(s) for s in active}
        added = 0
        for replica_set in active:
            if not to_add:
                break
            share = self._share(replica_set, to_add, added)
            sizes[metadata_of(replica_set)["uid"]] += share
            added += share
        for index, replica_set in enumerate(active):
            size = sizes[metadata_of(replica_set)["uid"]]
            if index == 0:
                size = max(0, size + to_add - added)  # the rest from rounding
            self._resize(replica_set, size)

    def _share(self, replica_set: Object, to_add: int, added: int) -> int:
        """Return a ReplicaSet's share of the pods to add or remove."""
        size = self._size(replica_set)
        old_limit = int(
            annotations_of(replica_set).get(MOST)
            or status_of(self.deployment).get("replicas", 0)
            or 0
        )
        if not size or not old_limit:
            return 0
        new_limit = self.replicas + self.max_surge if self.replicas else 0
        share = _round(size * new_limit / old_limit) - size
        remaining = to_add - added
        return min(share, remaining) if to_add > 0 else max(share, remaining)

    # Strategies.

    def _recreate(self) -> None:
        """Strategy Recreate: end all old pods before the new ones start."""
        changed = [self._resize(s, 0) for s in self.old if self._size(s)]
        if any(changed) or self._old_pods_run():
            return
        if self._ensure_new() and self.new is not None:
            self._resize(self.new, self.replicas)
        self._clean_up()

    def _old_pods_run(self) -> bool:
        old = {metadata_of(s)["uid"] for s in self.old}
        return any(
            (owner := controller_of(pod)) is not None
            and owner["uid"] in old
            and phase_of(pod) not in ("Succeeded", "Failed")
            for pod in self.pods
        )

    def _roll(self) -> None:
        """
        Strategy RollingUpdate: grow the new ReplicaSet and shrink the old ones within the bounds.
        """
        if not self._ensure_new() or self.new is None:
            return
        size = self._size(self.new)
        target = self.replicas if size > self.replicas else self._size_for_new(size)
        if self._resize(self.new, target):
            return
        if self._shrink_old():
            return
        self._clean_up()

    def _shrink_old(self) -> bool:
        """Shrink the old ReplicaSets as far as availability allows; return whether any shrank."""
        assert self.new is not None
        if not any(self._size(s) for s in self.old):
            return False
        least = self.replicas - self.max_unavailable
        new_unavailable = self._size(self.new) - status_of(self.new).get("availableReplicas", 0)
        room = self._total() - least - new_unavailable
        if room <= 0:
            return False
        changed = False
        for replica_set in self.old:  # unhealthy pods go first
            size = self._size(replica_set)
            unhealthy = size - status_of(replica_set).get("availableReplicas", 0)
            if room > 0 and size and unhealthy > 0:
                decrease = min(room, unhealthy)
                room -= decrease
                changed = self._resize(replica_set, size - decrease) or changed
        available = sum(status_of(s).get("availableReplicas", 0) for s in self.sets)
        room = available - least
        for replica_set in self.old:
            size = self._size(replica_set)
            if room > 0 and size:
                decrease = min(room, size)
                room -= decrease
                changed = self._resize(replica_set, size - decrease) or changed
        return changed

    def _clean_up(self) -> None:
        """Delete the oldest ReplicaSets beyond the history limit, once the rollout is complete."""
        limit = self.spec.get("revisionHistoryLimit", 10)
        if limit == _FOREVER or not self._is_complete(self._replica_counts()):
            return
        idle = [
            s
            for s in self.old
            if not is_deleted(s)
            and not self._size(s)
            and not status_of(s).get("replicas")
            and metadata_of(s).get("generation", 0) <= status_of(s).get("observedGeneration", 0)
        ]
        idle.sort(key=_revision)
        for replica_set in idle[: max(0, len(idle) - limit)]:
            self.plan.operations.append(Delete(REPLICA_SET, replica_set, self.deployment))

    # Status.

    def _set_paused(self, paused: bool) -> None:
        """Set the condition that says the Deployment was paused or resumed."""
        progressing = condition_of(self.deployment, "Progressing")
        reason = progressing.get("reason") if progressing else None
        if reason == "ProgressDeadlineExceeded":
            return
        if paused and reason != "DeploymentPaused":
            self._set_progressing("Unknown", "DeploymentPaused", "Deployment is paused")
        elif not paused and reason == "DeploymentPaused":
            self._set_progressing("Unknown", "DeploymentResumed", "Deployment is resumed")

    def _set_progressing(self, status: str, reason: str, message: str) -> None:
        """Set the condition Progressing."""
        progressing = self._condition("Progressing", status, reason, message)
        self.conditions = with_condition(self.conditions, progressing)

    def _condition(self, type: str, status: str, reason: str, message: str) -> dict[str, Any]:
        now = rfc3339(self.now)
        return {
            "type": type,
            "status": status,
            "reason": reason,
            "message": message,
            "lastUpdateTime": now,
            "lastTransitionTime": now,
        }

    def _replica_counts(self) -> dict[str, int]:
        """Return the numbers of replicas for the status."""

        def total(field: str) -> int:
            return sum(status_of(s).get(field) or 0 for s in self.sets)

        return {
            "replicas": total("replicas"),
            "updatedReplicas": status_of(self.new).get("replicas", 0) if self.new else 0,
            "readyReplicas": total("readyReplicas"),
            "availableReplicas": total("availableReplicas"),
            "terminatingReplicas": total("terminatingReplicas"),
        }

    def _is_complete(self, figures: Mapping[str, int]) -> bool:
        """Return whether all replicas are of the present template and available."""
        return (
            figures["updatedReplicas"] == self.replicas
            and figures["replicas"] == self.replicas
            and figures["availableReplicas"] == self.replicas
        )

    def _set_status(self) -> None:
        """Set the plan's status."""
        counts = self._replica_counts()
        least = self.replicas - self.max_unavailable
        if counts["availableReplicas"] >= least:
            available_fields = (
                "True",
                "MinimumReplicasAvailable",
                "Deployment has minimum availability.",
            )
        else:
            available_fields = (
                "False",
                "MinimumReplicasUnavailable",
                "Deployment does not have minimum availability.",
            )
        # `kubectl describe` shows this order: the condition that changed last comes last.
        self.conditions = with_condition(
            self.conditions, self._condition("Available", *available_fields)
        )
        if self.spec.get("progressDeadlineSeconds", _FOREVER) != _FOREVER:
            self._update_progressing(counts)
        self._copy_failure()
        unavailable = max(0, self._total() - counts["availableReplicas"])
        self.plan.status = status_patch(
            DEPLOYMENT,
            self.deployment,
            {
                **counts,
                "unavailableReplicas": unavailable,
                "observedGeneration": metadata_of(self.deployment).get("generation", 0),
                "collisionCount": self.collisions or None,
                "conditions": self.conditions,
            },
            zeros=("terminatingReplicas",),
        )

    def _update_progressing(self, counts: Mapping[str, int]) -> None:
        """Update the condition Progressing: complete, progressing, or past its deadline."""
        current = next((c for c in self.conditions if c["type"] == "Progressing"), None)
        reason = current.get("reason") if current else None
        if counts["replicas"] == counts["updatedReplicas"] and reason == "NewReplicaSetAvailable":
            return
        if self.spec.get("paused"):
            return
        name = f'ReplicaSet "{metadata_of(self.new)["name"]}"' if self.new else "Deployment"
        if not self.new:
            name = f'Deployment "{metadata_of(self.deployment)["name"]}"'
        if self._is_complete(counts):
            message = f"{name} has successfully progressed."
            self._set_progressing("True", "NewReplicaSetAvailable", message)
        elif self._has_progressed(counts):
            message = f"{name} is progressing."
            new = self._condition("Progressing", "True", "ReplicaSetUpdated", message)
            if current is not None and current.get("status") == "True":
                new["lastTransitionTime"] = current.get("lastTransitionTime")
            # Written even if only its time changed, since the deadline counts from it.
            self.conditions = [*(c for c in self.conditions if c["type"] != "Progressing"), new]
        elif current is not None and reason not in ("DeploymentPaused", "ProgressDeadlineExceeded"):
            deadline = self.spec["progressDeadlineSeconds"]
            seconds_left = parse_rfc3339(current["lastUpdateTime"]) + deadline - self.now
            if seconds_left < 0:
                message = f"{name} has timed out progressing."
                self._set_progressing("False", "ProgressDeadlineExceeded", message)
            else:
                self.plan.wait(seconds_left + 1)

    def _has_progressed(self, counts: Mapping[str, int]) -> bool:
        """Return whether the counts are better than those of the last status."""
        current = status_of(self.deployment)
        old_before = current.get("replicas", 0) - current.get("updatedReplicas", 0)
        return bool(
            counts["updatedReplicas"] > current.get("updatedReplicas", 0)
            or counts["replicas"] - counts["updatedReplicas"] < old_before
            or counts["readyReplicas"] > current.get("readyReplicas", 0)
            or counts["availableReplicas"] > current.get("availableReplicas", 0)
        )

    def _copy_failure(self) -> None:
        """Copy the condition ReplicaFailure from a ReplicaSet."""
        failure = condition_of(self.new, "ReplicaFailure") if self.new else None
        if failure is None:
            failure = next((c for s in self.old if (c := condition_of(s, "ReplicaFailure"))), None)
        if failure is None:
            self.conditions = [c for c in self.conditions if c["type"] != "ReplicaFailure"]
            return
        new = self._condition(
            "ReplicaFailure", failure["status"], failure["reason"], failure["message"]
        )
        self.conditions = with_condition(self.conditions, new)


def created(plan: WorkloadPlan) -> list[str]:
    """Return the names of the ReplicaSets that a plan creates."""
    return [str(metadata_of(o.obj)["name"]) for o in plan.operations if isinstance(o, CreateObject)]


def collided(deployment: Object, replica_set: Object) -> bool:
    """Return whether a ReplicaSet with our name is not ours, so that another name is needed."""
    owner = controller_of(replica_set)
    is_ours = owner is not None and owner["uid"] == metadata_of(deployment)["uid"]
    return not (is_ours and _same_template(replica_set, deployment["spec"]["template"]))


def collision(deployment: Object) -> Patch:
    """Return the patch that counts a collision, which changes the next name."""
    count = (status_of(deployment).get("collisionCount") or 0) + 1
    return Patch(DEPLOYMENT, deployment, {"status": {"collisionCount": count}}, "status")


def _same_template(replica_set: Object, template: Mapping[str, Any]) -> bool:
    return bool(_bare(replica_set["spec"]["template"]) == _bare(template))


def _bare(template: Mapping[str, Any]) -> Any:
    """Return a template without the label and fields that the API adds."""
    metadata = {
        key: value
        for key, value in (template.get("metadata") or {}).items()
        if value is not None and key != "creationTimestamp"
    }
    labels = without(metadata.get("labels") or {}, HASH)
    return {**template, "metadata": {**metadata, "labels": labels}}


def _revision(replica_set: Object) -> int:
    try:
        return int(annotations_of(replica_set).get(REVISION, "0"))
    except ValueError:
        return 0


def _age(replica_set: Object) -> tuple[str, str]:
    """Return a sort key: oldest first."""
    return metadata_of(replica_set).get("creationTimestamp") or "", metadata_of(replica_set)["name"]


def _is_saturated(replica_set: Object, replicas: int) -> bool:
    """Return whether a ReplicaSet has all of the Deployment's replicas, available."""
    return (
        replica_set["spec"].get("replicas", 1) == replicas
        and annotations_of(replica_set).get(DESIRED) == str(replicas)
        and status_of(replica_set).get("availableReplicas", 0) == replicas
    )


def _round(value: float) -> int:
    return int(value + 0.5)


def _bounds(spec: Mapping[str, Any], replicas: int) -> tuple[int, int]:
    """Return maxSurge and maxUnavailable as numbers of pods; never both 0."""
    strategy = spec.get("strategy") or {}
    if strategy.get("type") == "Recreate":
        return 0, 0
    rolling = strategy.get("rollingUpdate") or {}
    surge = _count(rolling.get("maxSurge", "25%"), replicas, up=True)
    unavailable = _count(rolling.get("maxUnavailable", "25%"), replicas, up=False)
    if not surge and not unavailable:
        unavailable = 1
    return surge, min(unavailable, replicas)


def _count(value: int | str, whole: int, *, up: bool) -> int:
    """Return a number, or a percentage of `whole` rounded up or down."""
    if isinstance(value, int):
        return value
    percent = int(value.removesuffix("%"))
    return -(-percent * whole // 100) if up else percent * whole // 100
