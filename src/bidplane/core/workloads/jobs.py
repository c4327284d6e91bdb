"""
A Job: pods until enough of them have succeeded, or too many have failed.

A pod keeps a finalizer until its end is counted. Its uid is written to the Job's status first, then
the finalizer is removed, then the uid becomes a count: a crash between any two of these counts no
end twice and forgets none.

A Job ends in two steps, as upstream: the criterion (SuccessCriteriaMet, FailureTarget), and once no
pod runs any more the final condition (Complete, Failed).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bidplane.api.kinds import JOB, POD, Object
from bidplane.api.objects import (
    annotations_of,
    condition_of,
    is_deleted,
    metadata_of,
    phase_of,
    status_of,
)
from bidplane.api.times import parse_rfc3339, rfc3339
from bidplane.core.workloads import indexes, podfailures
from bidplane.core.workloads.common import (
    claim,
    is_active,
    is_ready,
    pod_from,
    status_patch,
    with_condition,
    without,
)
from bidplane.core.workloads.plan import (
    CreateObject,
    Delete,
    Operation,
    Patch,
    RecordEvent,
    WorkloadPlan,
)

TRACKING = "batch.kubernetes.io/job-tracking"
INDEX = "batch.kubernetes.io/job-completion-index"
# On a pod: how often its index had failed before. With a limit per index, pods carry the count.
FAILURES = "batch.kubernetes.io/job-index-failure-count"
_FIRST_DELAY, _LONGEST_DELAY = 10.0, 600.0  # before a pod that failed is replaced
_MOST_UNCOUNTED = 500
_MOST_CREATED = 500


def plan(job: Object, pods: Sequence[Object], *, now: float) -> WorkloadPlan:
    """Plan for a Job; `pods` are those of its namespace."""
    if is_deleted(job):
        return WorkloadPlan(operations=release_all(job, pods))
    claimed = claim(JOB, job, POD, pods)
    planner = _JobPlanner(job, claimed.owned, now)
    planner.plan.operations[:0] = claimed.operations
    planner.decide()
    return planner.plan


def is_finished(job: Object) -> str:
    """Return `Complete` or `Failed`, or "" while the Job runs."""
    for type in ("Complete", "Failed"):
        end = condition_of(job, type)
        if end is not None and end["status"] == "True":
            return type
    return ""


def release_all(job: Object, pods: Sequence[Object]) -> list[Operation]:
    """Return the removal of the tracking finalizer from all pods of a deleted Job."""
    uid = metadata_of(job)["uid"]
    return [
        release(pod)
        for pod in pods
        if TRACKING in (metadata_of(pod).get("finalizers") or ())
        and any(o["uid"] == uid for o in metadata_of(pod).get("ownerReferences") or ())
    ]


def release(pod: Object) -> Patch:
    """Return the removal of the tracking finalizer from a pod."""
    finalizers = [f for f in metadata_of(pod).get("finalizers") or () if f != TRACKING]
    return Patch(POD, pod, {"metadata": {"finalizers": finalizers or None}})


class _JobPlanner:
    """The planning of one Job."""

    def __init__(self, job: Object, pods: Sequence[Object], now: float) -> None:
        self.job, self.spec, self.pods, self.now = job, job["spec"], pods, now
        self.status: dict[str, Any] = dict(status_of(job))
        self.conditions: list[Mapping[str, Any]] = list(self.status.get("conditions") or ())
        self.plan = WorkloadPlan()
        self.indexed = self.spec.get("completionMode") == "Indexed"
        self.per_index: int | None = self.spec.get("backoffLimitPerIndex")
        self.failed_indexes = indexes.parse(self.status.get("failedIndexes") or "")
        self.active = [pod for pod in pods if is_active(pod)]
        self.terminating = [
            p for p in pods if is_deleted(p) and phase_of(p) not in ("Succeeded", "Failed")
        ]

    def decide(self) -> None:
        """Fill the plan."""
        if is_finished(self.job):
            self.plan.operations.extend(
                release(p)
                for p in self.pods
                if TRACKING in (metadata_of(p).get("finalizers") or ())
            )
            self._expire()
            return
        self._begin()
        self._count()
        self._check_end()
        ending = self._ending()
        if ending is not None:
            self._end_pods()
            if not self.active and not self._has_unfinished_pods():
                self._finish(ending)
        elif self.spec.get("suspend"):
            self._discard(self.active)
        else:
            self._scale()
        self._set_status()

    # Time.

    def _begin(self) -> None:
        """Record the start, the suspension or the resumption of the Job."""
        suspended = condition_of(self.job, "Suspended")
        if self.spec.get("suspend"):
            if suspended is None or suspended["status"] != "True":
                self._set_condition("Suspended", "JobSuspended", "Job suspended")
                self._record_event("Suspended", "Job suspended")
                self.status["startTime"] = None
            return
        if suspended is not None and suspended["status"] == "True":
            self._set_condition("Suspended", "JobResumed", "Job resumed", status="False")
            self._record_event("Resumed", "Job resumed")
            self.status["startTime"] = rfc3339(self.now)
        elif not self.status.get("startTime"):
            self.status["startTime"] = rfc3339(self.now)

    def _expire(self) -> None:
        """Delete a finished Job when its time to live is over."""
        ttl = self.spec.get("ttlSecondsAfterFinished")
        if ttl is None:
            return
        ended = condition_of(self.job, is_finished(self.job))
        assert ended is not None
        seconds_left = parse_rfc3339(ended["lastTransitionTime"]) + ttl - self.now
        if seconds_left <= 0:
            self.plan.operations.append(Delete(JOB, self.job, self.job))
        else:
            self.plan.wait(seconds_left)

    # Counting.

    def _count(self) -> None:
        """Count the pods that ended, in the three steps described above."""
        recorded = self.status.get("uncountedTerminatedPods") or {}
        uncounted = {end: list(recorded.get(end) or ()) for end in ("succeeded", "failed")}
        tracked = {
            metadata_of(p)["uid"]
            for p in self.pods
            if TRACKING in (metadata_of(p).get("finalizers") or ())
        }
        counts = {end: self.status.get(end) or 0 for end in uncounted}
        for end, uids in uncounted.items():
            counted = [uid for uid in uids if uid not in tracked]
            counts[end] += len(counted)
            uncounted[end] = [uid for uid in uids if uid in tracked]
        completed = indexes.parse(self.status.get("completedIndexes") or "")
        self._count_indexes()
        room = _MOST_UNCOUNTED - sum(map(len, uncounted.values()))
        for pod in self.pods:
            uid, end = metadata_of(pod)["uid"], self._end_of(pod)
            if uid not in tracked or not end or uid in uncounted["succeeded"] + uncounted["failed"]:
                continue
            if room <= 0:
                break
            room -= 1
            if end == "succeeded" and self.indexed:
                index = _index(pod)
                if index is not None and index < (self.spec.get("completions") or 0):
                    completed.add(index)
                self.plan.operations.append(release(pod))
            elif end == "failed" and podfailures.verdict(self.job, pod)[0] == "Ignore":
                self.plan.operations.append(release(pod))
            else:
                uncounted[end].append(uid)
        # They are in the status before their finalizers are removed; see above.
        self.released = [
            release(pod)
            for pod in self.pods
            if metadata_of(pod)["uid"] in tracked
            and metadata_of(pod)["uid"] in uncounted["succeeded"] + uncounted["failed"]
            and not self._bears_count(pod)
        ]
        if self.indexed:
            self.status["completedIndexes"] = indexes.write(completed)
            counts["succeeded"] = len(completed)
            uncounted["succeeded"] = []
        self.completed = completed
        self.status |= counts
        self.status["uncountedTerminatedPods"] = {k: v for k, v in uncounted.items() if v}
        self.succeeded = counts["succeeded"] + len(uncounted["succeeded"])
        self.failed = counts["failed"] + len(uncounted["failed"])

    def _count_indexes(self) -> None:
        """Collect the indexes that failed for good, by their own limit or by a failure rule."""
        if self.per_index is None:
            return
        for pod in self.pods:
            index = _index(pod)
            if index is None or self._end_of(pod) != "failed":
                continue
            action = podfailures.verdict(self.job, pod)[0]
            too_often = action != "Ignore" and _failures(pod) >= self.per_index
            if action == "FailIndex" or too_often:
                self.failed_indexes.add(index)
        self.status["failedIndexes"] = indexes.write(self.failed_indexes)

    def _bears_count(self, pod: Object) -> bool:
        """
        Return whether a failed pod is the only record of how often its index has failed.

        It stays until the next pod of its index carries the count on.
        """
        if self.per_index is None or self._ending() is not None:
            return False
        index = _index(pod)
        if index is None or index in self.failed_indexes or phase_of(pod) == "Succeeded":
            return False
        return not any(
            _index(other) == index and _failures(other) > _failures(pod) for other in self.pods
        )

    def _end_of(self, pod: Object) -> str:
        """Return how a pod ended, "succeeded" or "failed"; "" if it has not."""
        phase = phase_of(pod)
        if phase == "Succeeded":
            return "succeeded"
        if phase == "Failed":
            return "failed"
        if not is_deleted(pod):
            return ""
        # A deleted pod may never report its end. With `Failed` the Job waits for it until its
        # node has released it: then no report can come.
        waits_for_end = self.spec.get("podReplacementPolicy") == "Failed"
        return (
            "" if waits_for_end and metadata_of(pod).get("deletionGracePeriodSeconds") else "failed"
        )

    def _has_unfinished_pods(self) -> bool:
        """Return whether pods are terminating or not counted yet."""
        return bool(self.terminating) or bool(self.status["uncountedTerminatedPods"])

    # Judging.

    def _check_end(self) -> None:
        """Set the condition that starts the Job's end, if a criterion is met."""
        if self._ending() is not None:
            return
        failed = [pod for pod in self.pods if self._end_of(pod) == "failed"]
        for pod in failed:
            action, message = podfailures.verdict(self.job, pod)
            if action == "FailJob":
                self._set_condition("FailureTarget", "PodFailurePolicy", message)
                return
        limit = self.spec.get("backoffLimit", 6)
        if self.failed > limit or self._restarts_exceed(limit):
            detail = "Job has reached the specified backoff limit"
            self._set_condition("FailureTarget", "BackoffLimitExceeded", detail)
            return
        if self.per_index is not None and self._indexes_exceed():
            return
        started, deadline = self.status.get("startTime"), self.spec.get("activeDeadlineSeconds")
        if deadline is not None and started and not self.spec.get("suspend"):
            seconds_left = parse_rfc3339(started) + deadline - self.now
            if seconds_left <= 0:
                detail = "Job was active longer than specified deadline"
                self._set_condition("FailureTarget", "DeadlineExceeded", detail)
                return
            self.plan.wait(seconds_left)
        if (rule := self._policy_met()) is not None:
            self._set_condition(
                "SuccessCriteriaMet", "SuccessPolicy", f"Matched rules at index {rule}"
            )
            return
        completions = self.spec.get("completions")
        if completions is None:
            is_complete = self.succeeded > 0 and not self.active and not self.terminating
        else:
            is_complete = self.succeeded >= completions
        if is_complete:
            detail = "Reached expected number of succeeded pods"
            self._set_condition("SuccessCriteriaMet", "CompletionsReached", detail)

    def _indexes_exceed(self) -> bool:
        """Set the failure condition if too many indexes failed, or all ended and some failed."""
        most, failed = self.spec.get("maxFailedIndexes"), len(self.failed_indexes)
        if most is not None and failed > most:
            message = "Job has exceeded the specified maximal number of failed indexes"
            self._set_condition("FailureTarget", "MaxFailedIndexesExceeded", message)
            return True
        ended = failed + len(self.completed - self.failed_indexes)
        if failed and ended >= (self.spec.get("completions") or 0):
            self._set_condition("FailureTarget", "FailedIndexes", "Job has failed indexes")
            return True
        return False

    def _policy_met(self) -> int | None:
        """
        Return the first rule of successPolicy that the completed indexes satisfy; None if none is.
        """
        for position, rule in enumerate((self.spec.get("successPolicy") or {}).get("rules") or ()):
            required_indexes = rule.get("succeededIndexes")
            matching = (
                self.completed
                if required_indexes is None
                else self.completed & indexes.parse(required_indexes)
            )
            count = rule.get("succeededCount")
            if len(matching) >= (
                len(indexes.parse(required_indexes or "")) if count is None else count
            ):
                return position
        return None

    def _restarts_exceed(self, limit: int) -> bool:
        """Return whether the containers of active pods restarted more often than the limit."""
        if (self.spec["template"].get("spec") or {}).get("restartPolicy") != "OnFailure":
            return False
        restarts = sum(
            container.get("restartCount", 0)
            for pod in self.active
            for group in ("initContainerStatuses", "containerStatuses")
            for container in status_of(pod).get(group) or ()
        )
        return bool(restarts >= limit if limit else restarts)

    def _ending(self) -> Mapping[str, Any] | None:
        """Return the condition that started the Job's end; None if there is none."""
        criteria = ("SuccessCriteriaMet", "FailureTarget")
        return next(
            (c for c in self.conditions if c["type"] in criteria and c["status"] == "True"), None
        )

    def _finish(self, ending: Mapping[str, Any]) -> None:
        """Set the Job's final condition."""
        succeeded = ending["type"] == "SuccessCriteriaMet"
        self._set_condition(
            "Complete" if succeeded else "Failed", ending["reason"], ending["message"]
        )
        if succeeded:
            self.status["completionTime"] = rfc3339(self.now)
            self._record_event("Completed", "Job completed")
        else:
            self._record_event(ending["reason"], ending["message"], "Warning")

    # Pods.

    def _end_pods(self) -> None:
        """Delete the active pods."""
        self.plan.operations.extend(Delete(POD, pod, self.job) for pod in self.active)

    def _discard(self, pods: Sequence[Object]) -> None:
        """Delete pods that are no longer needed, without counting them."""
        for pod in pods:
            self.plan.operations += [release(pod), Delete(POD, pod, self.job)]

    def _scale(self) -> None:
        """Create or delete pods up to the number that may run now."""
        parallelism, completions = self.spec.get("parallelism", 1), self.spec.get("completions")
        in_place = [*self.active]
        if self.spec.get("podReplacementPolicy") == "Failed":
            in_place += [p for p in self.terminating if self._end_of(p) != "failed"]
        if self.indexed:
            self._scale_indexes(parallelism, completions or 0, in_place)
            return
        if completions is None:
            target = len(self.active) if self.succeeded else parallelism
        else:
            target = min(parallelism, max(0, completions - self.succeeded))
        if len(self.active) > target:
            ranked = sorted(self.active, key=lambda p: (is_ready(p), metadata_of(p)["name"]))
            surplus = ranked[: len(self.active) - target]
            self._discard(surplus)
        missing = target - len(in_place)
        if missing > 0 and not self._backs_off(self.pods):
            self.plan.operations.extend(
                self._create_pod() for _ in range(min(missing, _MOST_CREATED))
            )

    def _scale_indexes(self, parallelism: int, completions: int, in_place: list[Object]) -> None:
        """Create or delete pods so that each open index has one, within the parallelism."""
        used_indexes: set[int] = set()
        for pod in sorted(in_place, key=lambda p: metadata_of(p)["name"]):
            index = _index(pod)
            ended = used_indexes | self.completed | self.failed_indexes
            is_surplus = index is None or index >= completions or index in ended
            if is_surplus or (len(used_indexes) >= parallelism and pod in self.active):
                if pod in self.active:
                    self._discard([pod])
            elif index is not None:
                used_indexes.add(index)
        ended = self.completed | self.failed_indexes
        room = min(parallelism, completions - len(ended)) - len(used_indexes)
        free = (i for i in range(completions) if i not in used_indexes and i not in ended)
        if self.per_index is not None:  # each index waits for its own failures
            free = (i for i in free if not self._backs_off(self._of_index(i)))
        elif room > 0 and self._backs_off(self.pods):
            return
        for _ in range(min(room, _MOST_CREATED)):
            if (index := next(free, None)) is not None:
                self.plan.operations.append(self._create_pod(index))

    def _of_index(self, index: int) -> list[Object]:
        return [pod for pod in self.pods if _index(pod) == index]

    def _backs_off(self, pods: Sequence[Object]) -> bool:
        """Return whether the next pod must wait: after each failure in a row, twice as long."""
        ends = [(_ended_at(p), phase_of(p)) for p in pods if phase_of(p) in ("Succeeded", "Failed")]
        success = max((time for time, phase in ends if phase == "Succeeded"), default=0.0)
        failures = [time for time, phase in ends if phase == "Failed" and time > success]
        if not failures:
            return False
        delay = min(_LONGEST_DELAY, _FIRST_DELAY * 2 ** min(len(failures) - 1, 10))
        seconds_left: float = max(failures) + delay - self.now
        if seconds_left > 0:
            self.plan.wait(seconds_left)
        return seconds_left > 0

    def _create_pod(self, index: int | None = None) -> CreateObject:
        """Return the creation of a pod, for an index if the Job has them."""
        pod = pod_from(self.spec["template"], JOB, self.job)
        metadata, name = pod["metadata"], metadata_of(self.job)["name"]
        metadata["finalizers"] = [*metadata.get("finalizers", ()), TRACKING]
        if index is None:
            metadata["generateName"] = f"{name}-"
            return CreateObject(POD, pod, self.job)
        metadata["generateName"] = f"{name}-{index}-"
        metadata["labels"] = {**metadata.get("labels", {}), INDEX: str(index)}
        metadata["annotations"] = {**metadata.get("annotations", {}), INDEX: str(index)}
        if self.per_index is not None:
            earlier_failures = [
                _failures(pod_of_index)
                + (podfailures.verdict(self.job, pod_of_index)[0] != "Ignore")
                for pod_of_index in self._of_index(index)
                if self._end_of(pod_of_index) == "failed"
            ]
            metadata["annotations"][FAILURES] = str(max(earlier_failures, default=0))
        pod["spec"].setdefault("hostname", f"{name}-{index}")
        source = {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.labels['{INDEX}']"}}
        for group in ("initContainers", "containers"):
            for container in pod["spec"].get(group) or ():
                env = container.setdefault("env", [])
                if all(variable["name"] != "JOB_COMPLETION_INDEX" for variable in env):
                    env.append({"name": "JOB_COMPLETION_INDEX", "valueFrom": source})
        return CreateObject(POD, pod, self.job)

    # Status.

    def _set_condition(self, type: str, reason: str, message: str, *, status: str = "True") -> None:
        now = rfc3339(self.now)
        new = {
            "type": type,
            "status": status,
            "reason": reason,
            "message": message,
            "lastProbeTime": now,
            "lastTransitionTime": now,
        }
        self.conditions = with_condition(self.conditions, new)

    def _record_event(self, reason: str, message: str, type: Any = "Normal") -> None:
        self.plan.operations.append(RecordEvent(self.job, reason, message, type))

    def _set_status(self) -> None:
        """Add the patch of the status, before the removal of finalizers."""
        deleted = {metadata_of(o.obj)["uid"] for o in self.plan.operations if isinstance(o, Delete)}
        remaining = [pod for pod in self.active if metadata_of(pod)["uid"] not in deleted]
        created = sum(isinstance(o, CreateObject) for o in self.plan.operations)
        status = {
            **without(self.status, "uncountedTerminatedPods"),
            "active": len(remaining) + created,
            "ready": sum(is_ready(pod) for pod in remaining),
            "terminating": len(self.terminating) + len(deleted),
            "conditions": self.conditions,
        }
        finished = any(c["type"] in ("Complete", "Failed") for c in self.conditions)
        if finished:
            status["active"] = status["ready"] = status["terminating"] = 0
        change = status_patch(JOB, self.job, status, zeros=("ready", "terminating"))
        uncounted = status_of(self.job).get("uncountedTerminatedPods")
        desired = self.status["uncountedTerminatedPods"]
        if uncounted != desired:
            # A merge patch removes a key only if it is set to None.
            merged = {**dict.fromkeys(uncounted or (), None), **desired}
            status_change = dict(change.change["status"]) if change else {}
            status_change["uncountedTerminatedPods"] = merged
            change = Patch(JOB, self.job, {"status": status_change}, "status")
        # The record of ended pods is written before their finalizers go, so that no end is lost.
        if change is not None:
            self.plan.operations.insert(0, change)
        self.plan.operations.extend(self.released)


def _index(pod: Object) -> int | None:
    """Return a pod's completion index; None if it has none."""
    text = annotations_of(pod).get(INDEX, "")
    return int(text) if text.isdecimal() else None


def _failures(pod: Object) -> int:
    """Return how often a pod's index had failed before it."""
    text = annotations_of(pod).get(FAILURES, "")
    return int(text) if text.isdecimal() else 0


def _ended_at(pod: Object) -> float:
    """Return when a pod ended, or the best estimate of it."""
    ends = [
        terminated["finishedAt"]
        for container in status_of(pod).get("containerStatuses") or ()
        if (terminated := (container.get("state") or {}).get("terminated"))
        and terminated.get("finishedAt")
    ]
    if ends:
        return max(map(parse_rfc3339, ends))
    ready = condition_of(pod, "Ready")
    time_text = (ready or {}).get("lastTransitionTime") or metadata_of(pod).get("deletionTimestamp")
    return parse_rfc3339(
        time_text or metadata_of(pod).get("creationTimestamp") or "1970-01-01T00:00:00Z"
    )
