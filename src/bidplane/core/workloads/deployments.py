"""
A Deployment: one ReplicaSet per template it ever had, and a way from the old to the new.

The newest template's ReplicaSet is found by equality, not by name, so a template that
comes back (`kubectl rollout undo`) is the ReplicaSet it was, with a new revision.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from bidplane.api.kinds import DEPLOYMENT, REPLICA_SET, Object
from bidplane.core.workloads.common import (
    annotations_of,
    claim,
    condition,
    controller_of,
    is_going,
    meta,
    owner_reference,
    phase_of,
    seconds,
    short_hash,
    stamp,
    status_of,
    status_patch,
    with_condition,
    without,
)
from bidplane.core.workloads.plan import Create, Delete, Patch, Plan, Record

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
_FOREVER = 2**31 - 1  # a deadline or a limit that is none


def plan(
    deployment: Object, replica_sets: Sequence[Object], pods: Sequence[Object], *, now: float
) -> Plan:
    """`replica_sets` and `pods` are those of its namespace."""
    claimed = claim(DEPLOYMENT, deployment, REPLICA_SET, replica_sets)
    rollout = _Rollout(deployment, claimed.mine, pods, now)
    rollout.plan.operations.extend(claimed.operations)
    rollout.decide()
    return rollout.plan


class _Rollout:
    """One look. `sizes` is what each ReplicaSet is to have; it starts as what it has."""

    def __init__(
        self, deployment: Object, sets: Sequence[Object], pods: Sequence[Object], now: float
    ) -> None:
        self.deployment, self.now, self.pods = deployment, now, pods
        self.spec: Mapping[str, Any] = deployment["spec"]
        self.wanted: int = self.spec.get("replicas", 1)
        self.sets = sorted(sets, key=_age)
        self.template = self.spec["template"]
        self.new = next((s for s in self.sets if _same_template(s, self.template)), None)
        self.old = [s for s in self.sets if s is not self.new]
        self.sizes: dict[str, int] = {
            meta(s)["uid"]: s["spec"].get("replicas", 1) for s in self.sets
        }
        self.conditions = list(status_of(deployment).get("conditions") or ())
        self.collisions = status_of(deployment).get("collisionCount") or 0
        self.plan = Plan()
        self.max_surge, self.max_unavailable = _bounds(self.spec, self.wanted)

    def decide(self) -> None:
        if is_going(self.deployment):
            self._say()
            return
        if self.spec.get("paused"):
            self._pause(True)
            if self.new is not None:
                self._keep_up()
            self._scale_in_proportion()
            self._clean_up()
            self._say()
            return
        self._pause(False)
        if self._was_scaled():
            if self.new is not None:
                self._keep_up()
            self._scale_in_proportion()
            self._say()
            return
        if (self.spec.get("strategy") or {}).get("type") == "Recreate":
            self._recreate()
        else:
            self._roll()
        self._say()

    # The newest ReplicaSet.

    def _ensure_new(self) -> bool:
        """Whether it is there; if not, it is asked for."""
        if self.new is not None:
            self._keep_up()
            return True
        name = f"{meta(self.deployment)['name']}-{self._hash()}"
        revision = self._next_revision()
        labels = {**(self.template.get("metadata") or {}).get("labels", {}), HASH: self._hash()}
        template = copy.deepcopy(dict(self.template))
        template["metadata"] = {**(template.get("metadata") or {}), "labels": labels}
        selector = copy.deepcopy(dict(self.spec["selector"]))
        selector["matchLabels"] = {**(selector.get("matchLabels") or {}), HASH: self._hash()}
        size = self._room_for_new(0)
        obj = {
            "apiVersion": REPLICA_SET.api_version,
            "kind": REPLICA_SET.kind,
            "metadata": {
                "name": name,
                "namespace": meta(self.deployment)["namespace"],
                "labels": labels,
                "annotations": {
                    **self._inherited(),
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
        self.plan.operations.append(Create(REPLICA_SET, obj, self.deployment))
        self._record_scaling(name, "up", 0, size)
        self._progress("True", "NewReplicaSetCreated", f'Created new replica set "{name}"')
        self._tell_revision(revision)
        return False

    def _hash(self) -> str:
        return short_hash(self.template, self.collisions)

    def _keep_up(self) -> None:
        """Revision, annotations and bounds of the ReplicaSet that is the newest."""
        assert self.new is not None
        known = annotations_of(self.new)
        revision = max(self._next_revision(), _revision(self.new))
        wanted = {**self._inherited(), REVISION: str(revision)}
        if known.get(REVISION) and known[REVISION] != str(revision):
            history = [h for h in known.get(HISTORY, "").split(",") if h]
            wanted[HISTORY] = ",".join([*history, known[REVISION]])
        change: dict[str, Any] = {}
        if any(known.get(key) != value for key, value in wanted.items()):
            change["metadata"] = {"annotations": wanted}
        ready = self.spec.get("minReadySeconds", 0)
        if self.new["spec"].get("minReadySeconds", 0) != ready:
            change["spec"] = {"minReadySeconds": ready or None}
        if change:
            self.plan.operations.append(Patch(REPLICA_SET, self.new, change))
        self._tell_revision(revision)
        if condition(self.deployment, "Progressing") is None:
            name = meta(self.new)["name"]
            self._progress("True", "FoundNewReplicaSet", f'Found new replica set "{name}"')

    def _tell_revision(self, revision: int) -> None:
        if annotations_of(self.deployment).get(REVISION) != str(revision):
            change = {"metadata": {"annotations": {REVISION: str(revision)}}}
            self.plan.operations.append(Patch(DEPLOYMENT, self.deployment, change))

    def _next_revision(self) -> int:
        return max((_revision(s) for s in self.old), default=0) + 1

    def _inherited(self) -> dict[str, str]:
        return without(annotations_of(self.deployment), *_OWN)

    def _bounds_annotations(self) -> dict[str, str]:
        return {DESIRED: str(self.wanted), MOST: str(self.wanted + self.max_surge)}

    # Sizes.

    def _size(self, replica_set: Object) -> int:
        return self.sizes[meta(replica_set)["uid"]]

    def _total(self) -> int:
        return sum(self.sizes.values())

    def _room_for_new(self, has: int) -> int:
        if (self.spec.get("strategy") or {}).get("type") == "Recreate":
            return self.wanted
        room = self.wanted + self.max_surge - self._total()
        return has + max(0, min(room, self.wanted - has))

    def _resize(self, replica_set: Object, size: int, *, of_deployment: bool = True) -> bool:
        """Whether there was anything to do."""
        before, known = self._size(replica_set), annotations_of(replica_set)
        annotations = self._bounds_annotations()
        same_bounds = all(known.get(key) == value for key, value in annotations.items())
        if before == size and same_bounds:
            return False
        change: dict[str, Any] = {"metadata": {"annotations": annotations}}
        if before != size:
            change["spec"] = {"replicas": size}
            self._record_scaling(
                meta(replica_set)["name"], "up" if size > before else "down", before, size
            )
        self.sizes[meta(replica_set)["uid"]] = size
        self.plan.operations.append(Patch(REPLICA_SET, replica_set, change))
        return before != size

    def _record_scaling(self, name: str, way: str, before: int, size: int) -> None:
        words = f"Scaled {way} replica set {name} from {before} to {size}"
        self.plan.operations.append(Record(self.deployment, "ScalingReplicaSet", words))

    def _was_scaled(self) -> bool:
        """Someone changed `replicas` since the ReplicaSets were last sized."""
        return any(
            annotations_of(s).get(DESIRED, str(self.wanted)) != str(self.wanted)
            for s in self.sets
            if self._size(s)
        )

    def _scale_in_proportion(self) -> None:
        """A change of `replicas` in the middle of a rollout is shared by all that have pods."""
        active = [s for s in self.sets if self._size(s)]
        if len(active) <= 1:
            only = active[0] if active else self.new
            if only is not None:
                self._resize(only, self.wanted)
            return
        if self.new is not None and _is_saturated(self.new, self.wanted):
            for replica_set in self.old:
                if self._size(replica_set):
                    self._resize(replica_set, 0)
            return
        rolling = (self.spec.get("strategy") or {}).get("type") != "Recreate"
        if not rolling:
            return
        allowed = self.wanted + self.max_surge if self.wanted else 0
        to_add = allowed - self._total()
        # Growing, the newest first; shrinking, the oldest. The largest before either.
        active.sort(key=_age, reverse=to_add > 0)
        active.sort(key=self._size, reverse=True)
        sizes = {meta(s)["uid"]: self._size(s) for s in active}
        added = 0
        for replica_set in active:
            if not to_add:
                break
            share = self._share(replica_set, to_add, added)
            sizes[meta(replica_set)["uid"]] += share
            added += share
        for index, replica_set in enumerate(active):
            size = sizes[meta(replica_set)["uid"]]
            if index == 0:
                size = max(0, size + to_add - added)  # what rounding left
            self._resize(replica_set, size)

    def _share(self, replica_set: Object, to_add: int, added: int) -> int:
        size = self._size(replica_set)
        most = int(
            annotations_of(replica_set).get(MOST)
            or status_of(self.deployment).get("replicas", 0)
            or 0
        )
        if not size or not most:
            return 0
        now_most = self.wanted + self.max_surge if self.wanted else 0
        share = _round(size * now_most / most) - size
        left = to_add - added
        return min(share, left) if to_add > 0 else max(share, left)

    # Strategies.

    def _recreate(self) -> None:
        went = [self._resize(s, 0) for s in self.old if self._size(s)]
        if any(went) or self._old_pods_run():
            return
        if self._ensure_new() and self.new is not None:
            self._resize(self.new, self.wanted)
        self._clean_up()

    def _old_pods_run(self) -> bool:
        old = {meta(s)["uid"] for s in self.old}
        return any(
            (owner := controller_of(pod)) is not None
            and owner["uid"] in old
            and phase_of(pod) not in ("Succeeded", "Failed")
            for pod in self.pods
        )

    def _roll(self) -> None:
        if not self._ensure_new() or self.new is None:
            return
        size = self._size(self.new)
        fit = self.wanted if size > self.wanted else self._room_for_new(size)
        if self._resize(self.new, fit):
            return
        if self._shrink_old():
            return
        self._clean_up()

    def _shrink_old(self) -> bool:
        assert self.new is not None
        if not any(self._size(s) for s in self.old):
            return False
        least = self.wanted - self.max_unavailable
        new_unavailable = self._size(self.new) - status_of(self.new).get("availableReplicas", 0)
        room = self._total() - least - new_unavailable
        if room <= 0:
            return False
        did = False
        for replica_set in self.old:  # what serves nobody goes first
            size = self._size(replica_set)
            unhealthy = size - status_of(replica_set).get("availableReplicas", 0)
            if room > 0 and size and unhealthy > 0:
                down = min(room, unhealthy)
                room -= down
                did = self._resize(replica_set, size - down) or did
        available = sum(status_of(s).get("availableReplicas", 0) for s in self.sets)
        room = available - least
        for replica_set in self.old:
            size = self._size(replica_set)
            if room > 0 and size:
                down = min(room, size)
                room -= down
                did = self._resize(replica_set, size - down) or did
        return did

    def _clean_up(self) -> None:
        """Drop the oldest that nobody can want back, once the rollout is complete."""
        limit = self.spec.get("revisionHistoryLimit", 10)
        if limit == _FOREVER or not self._is_complete(self._figures()):
            return
        idle = [
            s
            for s in self.old
            if not is_going(s)
            and not self._size(s)
            and not status_of(s).get("replicas")
            and meta(s).get("generation", 0) <= status_of(s).get("observedGeneration", 0)
        ]
        idle.sort(key=_revision)
        for replica_set in idle[: max(0, len(idle) - limit)]:
            self.plan.operations.append(Delete(REPLICA_SET, replica_set, self.deployment))

    # Status.

    def _pause(self, paused: bool) -> None:
        known = condition(self.deployment, "Progressing")
        reason = known.get("reason") if known else None
        if reason == "ProgressDeadlineExceeded":
            return
        if paused and reason != "DeploymentPaused":
            self._progress("Unknown", "DeploymentPaused", "Deployment is paused")
        elif not paused and reason == "DeploymentPaused":
            self._progress("Unknown", "DeploymentResumed", "Deployment is resumed")

    def _progress(self, status: str, reason: str, message: str) -> None:
        new = self._condition("Progressing", status, reason, message)
        self.conditions = with_condition(self.conditions, new)

    def _condition(self, type: str, status: str, reason: str, message: str) -> dict[str, Any]:
        now = stamp(self.now)
        return {
            "type": type,
            "status": status,
            "reason": reason,
            "message": message,
            "lastUpdateTime": now,
            "lastTransitionTime": now,
        }

    def _figures(self) -> dict[str, int]:
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
        return (
            figures["updatedReplicas"] == self.wanted
            and figures["replicas"] == self.wanted
            and figures["availableReplicas"] == self.wanted
        )

    def _say(self) -> None:
        figures = self._figures()
        least = self.wanted - self.max_unavailable
        if figures["availableReplicas"] >= least:
            words = ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
        else:
            words = (
                "False",
                "MinimumReplicasUnavailable",
                "Deployment does not have minimum availability.",
            )
        # The order is seen by whoever describes it: what changed last stands last.
        self.conditions = with_condition(self.conditions, self._condition("Available", *words))
        if self.spec.get("progressDeadlineSeconds", _FOREVER) != _FOREVER:
            self._say_progress(figures)
        self._say_failure()
        unavailable = max(0, self._total() - figures["availableReplicas"])
        self.plan.status = status_patch(
            DEPLOYMENT,
            self.deployment,
            {
                **figures,
                "unavailableReplicas": unavailable,
                "observedGeneration": meta(self.deployment).get("generation", 0),
                "collisionCount": self.collisions or None,
                "conditions": self.conditions,
            },
            zeros=("terminatingReplicas",),
        )

    def _say_progress(self, figures: Mapping[str, int]) -> None:
        known = next((c for c in self.conditions if c["type"] == "Progressing"), None)
        reason = known.get("reason") if known else None
        if figures["replicas"] == figures["updatedReplicas"] and reason == "NewReplicaSetAvailable":
            return
        if self.spec.get("paused"):
            return
        name = f'ReplicaSet "{meta(self.new)["name"]}"' if self.new else "Deployment"
        if not self.new:
            name = f'Deployment "{meta(self.deployment)["name"]}"'
        if self._is_complete(figures):
            words = f"{name} has successfully progressed."
            self._progress("True", "NewReplicaSetAvailable", words)
        elif self._has_progressed(figures):
            words = f"{name} is progressing."
            new = self._condition("Progressing", "True", "ReplicaSetUpdated", words)
            if known is not None and known.get("status") == "True":
                new["lastTransitionTime"] = known.get("lastTransitionTime")
            # Written though nothing but its time changed: the deadline counts from it.
            self.conditions = [*(c for c in self.conditions if c["type"] != "Progressing"), new]
        elif known is not None and reason not in ("DeploymentPaused", "ProgressDeadlineExceeded"):
            deadline = self.spec["progressDeadlineSeconds"]
            left = seconds(known["lastUpdateTime"]) + deadline - self.now
            if left < 0:
                words = f"{name} has timed out progressing."
                self._progress("False", "ProgressDeadlineExceeded", words)
            else:
                self.plan.wait(left + 1)

    def _has_progressed(self, figures: Mapping[str, int]) -> bool:
        known = status_of(self.deployment)
        old_before = known.get("replicas", 0) - known.get("updatedReplicas", 0)
        return bool(
            figures["updatedReplicas"] > known.get("updatedReplicas", 0)
            or figures["replicas"] - figures["updatedReplicas"] < old_before
            or figures["readyReplicas"] > known.get("readyReplicas", 0)
            or figures["availableReplicas"] > known.get("availableReplicas", 0)
        )

    def _say_failure(self) -> None:
        failure = condition(self.new, "ReplicaFailure") if self.new else None
        if failure is None:
            failure = next((c for s in self.old if (c := condition(s, "ReplicaFailure"))), None)
        if failure is None:
            self.conditions = [c for c in self.conditions if c["type"] != "ReplicaFailure"]
            return
        new = self._condition(
            "ReplicaFailure", failure["status"], failure["reason"], failure["message"]
        )
        self.conditions = with_condition(self.conditions, new)


def created(plan: Plan) -> list[str]:
    """The names of the ReplicaSets a plan makes."""
    return [str(meta(o.obj)["name"]) for o in plan.operations if isinstance(o, Create)]


def collided(deployment: Object, found: Object) -> bool:
    """Whether a ReplicaSet that has our name is not ours: then another name is tried."""
    owner = controller_of(found)
    ours = owner is not None and owner["uid"] == meta(deployment)["uid"]
    return not (ours and _same_template(found, deployment["spec"]["template"]))


def collision(deployment: Object) -> Patch:
    count = (status_of(deployment).get("collisionCount") or 0) + 1
    return Patch(DEPLOYMENT, deployment, {"status": {"collisionCount": count}}, "status")


def _same_template(replica_set: Object, template: Mapping[str, Any]) -> bool:
    return bool(_bare(replica_set["spec"]["template"]) == _bare(template))


def _bare(template: Mapping[str, Any]) -> Any:
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
    return meta(replica_set).get("creationTimestamp") or "", meta(replica_set)["name"]


def _is_saturated(replica_set: Object, wanted: int) -> bool:
    return (
        replica_set["spec"].get("replicas", 1) == wanted
        and annotations_of(replica_set).get(DESIRED) == str(wanted)
        and status_of(replica_set).get("availableReplicas", 0) == wanted
    )


def _round(value: float) -> int:
    return int(value + 0.5)


def _bounds(spec: Mapping[str, Any], wanted: int) -> tuple[int, int]:
    """maxSurge and maxUnavailable as numbers of pods; never both 0."""
    strategy = spec.get("strategy") or {}
    if strategy.get("type") == "Recreate":
        return 0, 0
    rolling = strategy.get("rollingUpdate") or {}
    surge = _count(rolling.get("maxSurge", "25%"), wanted, up=True)
    unavailable = _count(rolling.get("maxUnavailable", "25%"), wanted, up=False)
    if not surge and not unavailable:
        unavailable = 1
    return surge, min(unavailable, wanted)


def _count(value: int | str, of: int, *, up: bool) -> int:
    if isinstance(value, int):
        return value
    percent = int(value.removesuffix("%"))
    return -(-percent * of // 100) if up else percent * of // 100
