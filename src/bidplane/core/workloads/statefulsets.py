"""
A StatefulSet: pods with stable names, created in order and ended in reverse.

Earlier templates are kept in ControllerRevisions; a pod's label names the one it was made from.
Unless `podManagementPolicy` is Parallel, one pod is changed at a time, and the next waits until it
is ready.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any

from bidplane.api.kinds import CONTROLLER_REVISION, POD, STATEFUL_SET, VOLUME_CLAIM, Kind, Object
from bidplane.api.objects import is_deleted, labels_of, metadata_of, phase_of, status_of
from bidplane.core.workloads.common import (
    available_in,
    claim,
    is_ready,
    owner_reference,
    pod_from,
    short_hash,
    status_patch,
)
from bidplane.core.workloads.plan import CreateObject, Delete, Operation, Patch, WorkloadPlan

REVISION = "controller-revision-hash"
POD_NAME = "statefulset.kubernetes.io/pod-name"
POD_INDEX = "apps.kubernetes.io/pod-index"
_ORDINAL = re.compile(r"(.*)-([0-9]+)")


def plan(
    stateful_set: Object,
    revisions: Sequence[Object],
    pods: Sequence[Object],
    volume_claims: Sequence[Object],
    *,
    now: float,
) -> WorkloadPlan:
    """Plan for a StatefulSet; all other objects are those of its namespace."""
    parent = f"{metadata_of(stateful_set)['name']}-"
    candidates = [
        p for p in pods if metadata_of(p)["name"].startswith(parent) and _ordinal(p) is not None
    ]
    claimed = claim(STATEFUL_SET, stateful_set, POD, candidates)
    owned_revisions = claim(STATEFUL_SET, stateful_set, CONTROLLER_REVISION, revisions)
    planner = _StatefulSetPlanner(
        stateful_set, owned_revisions.owned, claimed.owned, volume_claims, now
    )
    planner.plan.operations[:0] = [*claimed.operations, *owned_revisions.operations]
    planner.decide()
    return planner.plan


class _StatefulSetPlanner:
    """The planning of one StatefulSet."""

    def __init__(
        self,
        stateful_set: Object,
        revisions: Sequence[Object],
        pods: Sequence[Object],
        volume_claims: Sequence[Object],
        now: float,
    ) -> None:
        self.set, self.spec, self.now = stateful_set, stateful_set["spec"], now
        self.pods = {_ordinal(pod): pod for pod in pods}
        self.claims = {metadata_of(c)["name"]: c for c in volume_claims}
        self.plan = WorkloadPlan()
        self.one_by_one = self.spec.get("podManagementPolicy") != "Parallel"
        self.start = (self.spec.get("ordinals") or {}).get("start", 0)
        self.end = self.start + self.spec.get("replicas", 1)
        strategy = self.spec.get("updateStrategy") or {}
        self.rolls = strategy.get("type", "RollingUpdate") == "RollingUpdate"
        rolling = strategy.get("rollingUpdate") or {}
        self.partition: int = rolling.get("partition", 0)
        self.max_unavailable = _count(
            rolling.get("maxUnavailable", 1), self.spec.get("replicas", 1)
        )
        self.revisions = sorted(
            revisions, key=lambda r: (r.get("revision", 0), metadata_of(r)["name"])
        )
        self.update = self._update_revision()
        by_name = {metadata_of(r)["name"]: r for r in self.revisions}
        self.current = by_name.get(status_of(stateful_set).get("currentRevision", ""), self.update)
        self.removed: set[int] = set()

    def decide(self) -> None:
        """Fill the plan."""
        if not is_deleted(self.set):
            self._set_claim_owners()
            self._plan_pods()
            self._trim_revisions()
        self._set_status()

    # Revisions.

    def _update_revision(self) -> Object:
        """Return the revision of the present template, and create or renumber it if needed."""
        data = _revision_data(self.spec["template"])
        equal = [r for r in self.revisions if r.get("data") == data]
        last = self.revisions[-1].get("revision", 0) if self.revisions else 0
        if equal:
            newest = equal[-1]
            if newest.get("revision", 0) != last:  # an earlier template is used again
                change = {"revision": last + 1}
                self.plan.operations.append(Patch(CONTROLLER_REVISION, newest, change))
            return newest
        fingerprint = short_hash(data, status_of(self.set).get("collisionCount") or 0)
        labels = (self.spec["template"].get("metadata") or {}).get("labels") or {}
        created = {
            "apiVersion": CONTROLLER_REVISION.api_version,
            "kind": CONTROLLER_REVISION.kind,
            "metadata": {
                "name": f"{metadata_of(self.set)['name']}-{fingerprint}",
                "namespace": metadata_of(self.set)["namespace"],
                "labels": {**labels, "controller.kubernetes.io/hash": fingerprint},
                "ownerReferences": [owner_reference(STATEFUL_SET, self.set)],
            },
            "data": data,
            "revision": last + 1,
        }
        self.plan.operations.append(CreateObject(CONTROLLER_REVISION, created, self.set))
        return created

    def _trim_revisions(self) -> None:
        """Delete the oldest unused revisions beyond the history limit."""
        live = {metadata_of(self.update)["name"], metadata_of(self.current)["name"]}
        live |= {labels_of(pod).get(REVISION, "") for pod in self.pods.values()}
        idle = [
            r for r in self.revisions if metadata_of(r)["name"] not in live and not is_deleted(r)
        ]
        limit = self.spec.get("revisionHistoryLimit", 10)
        for revision in idle[: max(0, len(idle) - limit)]:
            self.plan.operations.append(Delete(CONTROLLER_REVISION, revision, self.set))

    # Volume claims.

    def _set_claim_owners(self) -> None:
        """
        Set the owners of volume claims by the retention policy, so that they are deleted in time.

        The garbage collector deletes a claim with its owner. Before a pod is deleted, its claim
        gets the pod, the set or nobody as its owner.
        """
        policy = self.spec.get("persistentVolumeClaimRetentionPolicy") or {}
        for ordinal, pod in self.pods.items():
            condemned = not self.start <= ordinal < self.end
            owner: dict[str, Any] | None = None
            if condemned and policy.get("whenScaled") == "Delete":
                owner = _reference(POD, pod)
            elif policy.get("whenDeleted") == "Delete":
                owner = _reference(STATEFUL_SET, self.set)
            for template in self.spec.get("volumeClaimTemplates") or ():
                volume_claim = self.claims.get(
                    f"{metadata_of(template)['name']}-{metadata_of(pod)['name']}"
                )
                if volume_claim is not None and not is_deleted(volume_claim):
                    self._set_claim_owner(volume_claim, pod, owner)

    def _set_claim_owner(
        self, volume_claim: Object, pod: Object, owner: dict[str, Any] | None
    ) -> None:
        """Patch the owner of one volume claim, if it is not so already."""
        managed_uids = {metadata_of(self.set)["uid"], metadata_of(pod)["uid"]}
        references = list(metadata_of(volume_claim).get("ownerReferences") or ())
        if {reference["uid"] for reference in references if reference["uid"] in managed_uids} == (
            {owner["uid"]} if owner else set()
        ):
            return
        owners = [reference for reference in references if reference["uid"] not in managed_uids] + (
            [owner] if owner else []
        )
        change = {"metadata": {"ownerReferences": owners or None}}
        self.plan.operations.append(Patch(VOLUME_CLAIM, volume_claim, change))

    # Pods.

    def _plan_pods(self) -> None:
        """Create missing pods, delete surplus ones and roll out the update, in order."""
        for ordinal in range(self.start, self.end):
            if not self._plan_pod(ordinal):
                return
        condemned = sorted((o for o in self.pods if not self.start <= o < self.end), reverse=True)
        for ordinal in condemned:
            pod = self.pods[ordinal]
            if is_deleted(pod):
                if self.one_by_one:
                    return
                continue
            self._delete(pod)
            if self.one_by_one:
                return
        if self.rolls:
            self._roll()

    def _plan_pod(self, ordinal: int) -> bool:
        """Plan for one pod; return whether the next pod may be considered."""
        pod = self.pods.get(ordinal)
        if pod is None:
            self.plan.operations.extend(self._create_pod(ordinal))
            return not self.one_by_one
        if is_deleted(pod):
            return not self.one_by_one
        if phase_of(pod) in ("Succeeded", "Failed"):
            self._delete(pod)
            return not self.one_by_one
        return self._is_healthy(pod) or not self.one_by_one

    def _is_healthy(self, pod: Object) -> bool:
        """Return whether a pod runs and is available."""
        if phase_of(pod) != "Running" or is_deleted(pod):
            return False
        seconds_left = available_in(pod, self.spec.get("minReadySeconds", 0), self.now)
        if seconds_left:
            self.plan.wait(seconds_left)
        return seconds_left == 0

    def _roll(self) -> None:
        """Replace pods of old revisions, the last first, within `maxUnavailable`."""
        name = metadata_of(self.update)["name"]
        unavailable = {o for o in range(self.start, self.end) if not self._is_available(o)}
        for ordinal in range(self.end - 1, self.start + self.partition - 1, -1):
            pod = self.pods.get(ordinal)
            if pod is None or is_deleted(pod) or labels_of(pod).get(REVISION) == name:
                continue
            if len(unavailable - {ordinal}) >= self.max_unavailable:
                return
            unavailable.add(ordinal)
            self._delete(pod)

    def _is_available(self, ordinal: int) -> bool:
        pod = self.pods.get(ordinal)
        return pod is not None and self._is_healthy(pod)

    def _delete(self, pod: Object) -> None:
        self.plan.operations.append(Delete(POD, pod, self.set))

    def _create_pod(self, ordinal: int) -> list[Operation]:
        """Return the creation of a pod and of its missing volume claims."""
        old = self.rolls and ordinal < self.start + self.partition
        revision = self.current if old else self.update
        pod_template = revision["data"]["spec"]["template"]
        name = f"{metadata_of(self.set)['name']}-{ordinal}"
        pod = pod_from(pod_template, STATEFUL_SET, self.set)
        pod["metadata"]["name"] = name
        pod["metadata"]["labels"] = {
            **pod["metadata"].get("labels", {}),
            REVISION: metadata_of(revision)["name"],
            POD_NAME: name,
            POD_INDEX: str(ordinal),
        }
        pod["spec"]["hostname"] = name
        if self.spec.get("serviceName"):
            pod["spec"]["subdomain"] = self.spec["serviceName"]
        operations: list[Operation] = []
        for template in self.spec.get("volumeClaimTemplates") or ():
            claim_name = f"{metadata_of(template)['name']}-{name}"
            if claim_name not in self.claims:
                operations.append(
                    CreateObject(VOLUME_CLAIM, self._volume_claim(template, claim_name), self.set)
                )
            volumes = [
                v
                for v in pod["spec"].get("volumes") or ()
                if v["name"] != metadata_of(template)["name"]
            ]
            source = {"claimName": claim_name}
            volumes.append({"name": metadata_of(template)["name"], "persistentVolumeClaim": source})
            pod["spec"]["volumes"] = volumes
        return [*operations, CreateObject(POD, pod, self.set)]

    def _volume_claim(self, template: Mapping[str, Any], name: str) -> dict[str, Any]:
        """Return the volume claim that a template makes."""
        labels = (self.spec.get("selector") or {}).get("matchLabels") or {}
        template_metadata = template.get("metadata") or {}
        return {
            "apiVersion": VOLUME_CLAIM.api_version,
            "kind": VOLUME_CLAIM.kind,
            "metadata": {
                "name": name,
                "namespace": metadata_of(self.set)["namespace"],
                "labels": {**(template_metadata.get("labels") or {}), **labels},
                **(
                    {"annotations": template_metadata["annotations"]}
                    if template_metadata.get("annotations")
                    else {}
                ),
            },
            "spec": copy.deepcopy(template.get("spec") or {}),
        }

    # Status.

    def _set_status(self) -> None:
        """Set the plan's status."""
        pods = list(self.pods.values())
        update, current = metadata_of(self.update)["name"], metadata_of(self.current)["name"]
        ready = sum(is_ready(p) and phase_of(p) == "Running" for p in pods)
        wait = self.spec.get("minReadySeconds", 0)
        live_revisions = [labels_of(p).get(REVISION) for p in pods if not is_deleted(p)]
        updated = live_revisions.count(update)
        if self.rolls and updated == len(pods) == ready and update != current:
            current = update
        self.plan.status = status_patch(
            STATEFUL_SET,
            self.set,
            {
                "replicas": len(pods),
                "readyReplicas": ready,
                "availableReplicas": sum(available_in(p, wait, self.now) == 0 for p in pods),
                "currentReplicas": live_revisions.count(current),
                "updatedReplicas": updated,
                "currentRevision": current,
                "updateRevision": update,
                "observedGeneration": metadata_of(self.set).get("generation", 0),
                "collisionCount": status_of(self.set).get("collisionCount") or 0,
            },
            zeros=("replicas", "availableReplicas", "collisionCount"),
        )


def _reference(kind: Kind, obj: Object) -> dict[str, Any]:
    """Return an owner reference for a volume claim; only the set is its controller."""
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "name": metadata_of(obj)["name"],
        "uid": metadata_of(obj)["uid"],
        "controller": kind is STATEFUL_SET,
    }


def _revision_data(template: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return a revision's data as `kubectl rollout undo` sends it: a patch that replaces the template.
    """
    return {"spec": {"template": {**copy.deepcopy(dict(template)), "$patch": "replace"}}}


def _count(value: int | str, whole: int) -> int:
    """Return a number, or a percentage of `whole` rounded up; at least 1."""
    if isinstance(value, int):
        return max(1, value)
    return max(1, -(-int(value.removesuffix("%")) * whole // 100))


def _ordinal(pod: Object) -> int:
    """Return a pod's ordinal; -1 if its name has none."""
    match = _ORDINAL.fullmatch(metadata_of(pod)["name"])
    return int(match[2]) if match else -1
