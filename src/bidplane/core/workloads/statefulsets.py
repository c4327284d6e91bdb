"""
A StatefulSet: pods with names of their own, made in order, ended in reverse.

What its template was is kept in ControllerRevisions; a pod's label says which it was made
from. Unless `podManagementPolicy` is Parallel, one pod is changed at a time, and the next
waits until it is ready.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any

from bidplane.api.kinds import CONTROLLER_REVISION, POD, STATEFUL_SET, VOLUME_CLAIM, Kind, Object
from bidplane.core.workloads.common import (
    available_in,
    claim,
    is_going,
    is_ready,
    labels_of,
    meta,
    owner_reference,
    phase_of,
    pod_from,
    short_hash,
    status_of,
    status_patch,
)
from bidplane.core.workloads.plan import Create, Delete, Operation, Patch, Plan

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
) -> Plan:
    """All but the set itself are those of its namespace."""
    parent = f"{meta(stateful_set)['name']}-"
    candidates = [p for p in pods if meta(p)["name"].startswith(parent) and _ordinal(p) is not None]
    claimed = claim(STATEFUL_SET, stateful_set, POD, candidates)
    kept = claim(STATEFUL_SET, stateful_set, CONTROLLER_REVISION, revisions)
    look = _Look(stateful_set, kept.mine, claimed.mine, volume_claims, now)
    look.plan.operations[:0] = [*claimed.operations, *kept.operations]
    look.decide()
    return look.plan


class _Look:
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
        self.claims = {meta(c)["name"]: c for c in volume_claims}
        self.plan = Plan()
        self.one_by_one = self.spec.get("podManagementPolicy") != "Parallel"
        self.start = (self.spec.get("ordinals") or {}).get("start", 0)
        self.end = self.start + self.spec.get("replicas", 1)
        strategy = self.spec.get("updateStrategy") or {}
        self.rolls = strategy.get("type", "RollingUpdate") == "RollingUpdate"
        rolling = strategy.get("rollingUpdate") or {}
        self.partition: int = rolling.get("partition", 0)
        self.max_away = _count(rolling.get("maxUnavailable", 1), self.spec.get("replicas", 1))
        self.revisions = sorted(revisions, key=lambda r: (r.get("revision", 0), meta(r)["name"]))
        self.update = self._newest()
        known = {meta(r)["name"]: r for r in self.revisions}
        self.current = known.get(status_of(stateful_set).get("currentRevision", ""), self.update)
        self.removed: set[int] = set()

    def decide(self) -> None:
        if not is_going(self.set):
            self._own_claims()
            self._arrange()
            self._forget_old()
        self._say()

    # Revisions.

    def _newest(self) -> Object:
        data = _data(self.spec["template"])
        equal = [r for r in self.revisions if r.get("data") == data]
        last = self.revisions[-1].get("revision", 0) if self.revisions else 0
        if equal:
            found = equal[-1]
            if found.get("revision", 0) != last:  # the template came back
                change = {"revision": last + 1}
                self.plan.operations.append(Patch(CONTROLLER_REVISION, found, change))
            return found
        fingerprint = short_hash(data, status_of(self.set).get("collisionCount") or 0)
        labels = (self.spec["template"].get("metadata") or {}).get("labels") or {}
        fresh = {
            "apiVersion": CONTROLLER_REVISION.api_version,
            "kind": CONTROLLER_REVISION.kind,
            "metadata": {
                "name": f"{meta(self.set)['name']}-{fingerprint}",
                "namespace": meta(self.set)["namespace"],
                "labels": {**labels, "controller.kubernetes.io/hash": fingerprint},
                "ownerReferences": [owner_reference(STATEFUL_SET, self.set)],
            },
            "data": data,
            "revision": last + 1,
        }
        self.plan.operations.append(Create(CONTROLLER_REVISION, fresh, self.set))
        return fresh

    def _forget_old(self) -> None:
        live = {meta(self.update)["name"], meta(self.current)["name"]}
        live |= {labels_of(pod).get(REVISION, "") for pod in self.pods.values()}
        idle = [r for r in self.revisions if meta(r)["name"] not in live and not is_going(r)]
        limit = self.spec.get("revisionHistoryLimit", 10)
        for revision in idle[: max(0, len(idle) - limit)]:
            self.plan.operations.append(Delete(CONTROLLER_REVISION, revision, self.set))

    # Volume claims.

    def _own_claims(self) -> None:
        """
        Whose end a claim shares is said by its owners, and the garbage collector does the rest.

        Before a pod is condemned its claim is given to it, or to the set, or to nobody.
        """
        policy = self.spec.get("persistentVolumeClaimRetentionPolicy") or {}
        for ordinal, pod in self.pods.items():
            condemned = not self.start <= ordinal < self.end
            owner: dict[str, Any] | None = None
            if condemned and policy.get("whenScaled") == "Delete":
                owner = _reference(POD, pod)
            elif policy.get("whenDeleted") == "Delete":
                owner = _reference(STATEFUL_SET, self.set)
            for wanted in self.spec.get("volumeClaimTemplates") or ():
                found = self.claims.get(f"{meta(wanted)['name']}-{meta(pod)['name']}")
                if found is not None and not is_going(found):
                    self._give(found, pod, owner)

    def _give(self, found: Object, pod: Object, owner: dict[str, Any] | None) -> None:
        ours = {meta(self.set)["uid"], meta(pod)["uid"]}
        held = list(meta(found).get("ownerReferences") or ())
        if {one["uid"] for one in held if one["uid"] in ours} == (
            {owner["uid"]} if owner else set()
        ):
            return
        left = [one for one in held if one["uid"] not in ours] + ([owner] if owner else [])
        change = {"metadata": {"ownerReferences": left or None}}
        self.plan.operations.append(Patch(VOLUME_CLAIM, found, change))

    # Pods.

    def _arrange(self) -> None:
        for ordinal in range(self.start, self.end):
            if not self._settle(ordinal):
                return
        condemned = sorted((o for o in self.pods if not self.start <= o < self.end), reverse=True)
        for ordinal in condemned:
            pod = self.pods[ordinal]
            if is_going(pod):
                if self.one_by_one:
                    return
                continue
            self._delete(pod)
            if self.one_by_one:
                return
        if self.rolls:
            self._roll()

    def _settle(self, ordinal: int) -> bool:
        """Whether the pod is as it should be, so that the next may be looked at."""
        pod = self.pods.get(ordinal)
        if pod is None:
            self.plan.operations.extend(self._make(ordinal))
            return not self.one_by_one
        if is_going(pod):
            return not self.one_by_one
        if phase_of(pod) in ("Succeeded", "Failed"):
            self._delete(pod)
            return not self.one_by_one
        return self._is_healthy(pod) or not self.one_by_one

    def _is_healthy(self, pod: Object) -> bool:
        if phase_of(pod) != "Running" or is_going(pod):
            return False
        left = available_in(pod, self.spec.get("minReadySeconds", 0), self.now)
        if left:
            self.plan.wait(left)
        return left == 0

    def _roll(self) -> None:
        """The last first, and never more away at once than `maxUnavailable`."""
        name = meta(self.update)["name"]
        away = {o for o in range(self.start, self.end) if not self._is_there(o)}
        for ordinal in range(self.end - 1, self.start + self.partition - 1, -1):
            pod = self.pods.get(ordinal)
            if pod is None or is_going(pod) or labels_of(pod).get(REVISION) == name:
                continue
            if len(away - {ordinal}) >= self.max_away:
                return
            away.add(ordinal)
            self._delete(pod)

    def _is_there(self, ordinal: int) -> bool:
        pod = self.pods.get(ordinal)
        return pod is not None and self._is_healthy(pod)

    def _delete(self, pod: Object) -> None:
        self.plan.operations.append(Delete(POD, pod, self.set))

    def _make(self, ordinal: int) -> list[Operation]:
        old = self.rolls and ordinal < self.start + self.partition
        revision = self.current if old else self.update
        template = revision["data"]["spec"]["template"]
        name = f"{meta(self.set)['name']}-{ordinal}"
        pod = pod_from(template, STATEFUL_SET, self.set)
        pod["metadata"]["name"] = name
        pod["metadata"]["labels"] = {
            **pod["metadata"].get("labels", {}),
            REVISION: meta(revision)["name"],
            POD_NAME: name,
            POD_INDEX: str(ordinal),
        }
        pod["spec"]["hostname"] = name
        if self.spec.get("serviceName"):
            pod["spec"]["subdomain"] = self.spec["serviceName"]
        made: list[Operation] = []
        for wanted in self.spec.get("volumeClaimTemplates") or ():
            claim_name = f"{meta(wanted)['name']}-{name}"
            if claim_name not in self.claims:
                made.append(Create(VOLUME_CLAIM, self._volume_claim(wanted, claim_name), self.set))
            volumes = [
                v for v in pod["spec"].get("volumes") or () if v["name"] != meta(wanted)["name"]
            ]
            source = {"claimName": claim_name}
            volumes.append({"name": meta(wanted)["name"], "persistentVolumeClaim": source})
            pod["spec"]["volumes"] = volumes
        return [*made, Create(POD, pod, self.set)]

    def _volume_claim(self, wanted: Mapping[str, Any], name: str) -> dict[str, Any]:
        labels = (self.spec.get("selector") or {}).get("matchLabels") or {}
        given = wanted.get("metadata") or {}
        return {
            "apiVersion": VOLUME_CLAIM.api_version,
            "kind": VOLUME_CLAIM.kind,
            "metadata": {
                "name": name,
                "namespace": meta(self.set)["namespace"],
                "labels": {**(given.get("labels") or {}), **labels},
                **({"annotations": given["annotations"]} if given.get("annotations") else {}),
            },
            "spec": copy.deepcopy(wanted.get("spec") or {}),
        }

    # Status.

    def _say(self) -> None:
        pods = list(self.pods.values())
        update, current = meta(self.update)["name"], meta(self.current)["name"]
        ready = sum(is_ready(p) and phase_of(p) == "Running" for p in pods)
        wait = self.spec.get("minReadySeconds", 0)
        staying = [labels_of(p).get(REVISION) for p in pods if not is_going(p)]
        updated = staying.count(update)
        if self.rolls and updated == len(pods) == ready and update != current:
            current = update
        self.plan.status = status_patch(
            STATEFUL_SET,
            self.set,
            {
                "replicas": len(pods),
                "readyReplicas": ready,
                "availableReplicas": sum(available_in(p, wait, self.now) == 0 for p in pods),
                "currentReplicas": staying.count(current),
                "updatedReplicas": updated,
                "currentRevision": current,
                "updateRevision": update,
                "observedGeneration": meta(self.set).get("generation", 0),
                "collisionCount": status_of(self.set).get("collisionCount") or 0,
            },
            zeros=("replicas", "availableReplicas", "collisionCount"),
        )


def _reference(kind: Kind, obj: Object) -> dict[str, Any]:
    """An owner that does not control: the claim's own controllers do."""
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "name": meta(obj)["name"],
        "uid": meta(obj)["uid"],
        "controller": kind is STATEFUL_SET,
    }


def _data(template: Mapping[str, Any]) -> dict[str, Any]:
    """What `kubectl rollout undo` sends back: a strategic patch that replaces the template."""
    return {"spec": {"template": {**copy.deepcopy(dict(template)), "$patch": "replace"}}}


def _count(value: int | str, of: int) -> int:
    """A number, or a share rounded up; at least one."""
    if isinstance(value, int):
        return max(1, value)
    return max(1, -(-int(value.removesuffix("%")) * of // 100))


def _ordinal(pod: Object) -> int:
    found = _ORDINAL.fullmatch(meta(pod)["name"])
    return int(found[2]) if found else -1
