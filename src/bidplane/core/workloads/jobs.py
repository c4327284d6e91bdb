"""
A Job: pods until enough of them have succeeded, or too many have failed.

A pod keeps a finalizer until its end is counted. Its uid is written to the Job's status
first, then the finalizer is taken off, then the uid becomes a count: a crash between any
two of these counts no end twice and forgets none.

Its end has two steps, as upstream: the criterion (SuccessCriteriaMet, FailureTarget), and
once nothing runs any more the condition people wait for (Complete, Failed).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bidplane.api.kinds import JOB, POD, Object
from bidplane.core.workloads import indexes, podfailures
from bidplane.core.workloads.common import (
    annotations_of,
    claim,
    condition,
    is_active,
    is_going,
    is_ready,
    meta,
    phase_of,
    pod_from,
    seconds,
    stamp,
    status_of,
    status_patch,
    with_condition,
    without,
)
from bidplane.core.workloads.plan import Create, Delete, Operation, Patch, Plan, Record

TRACKING = "batch.kubernetes.io/job-tracking"
INDEX = "batch.kubernetes.io/job-completion-index"
# How often a pod's index had failed before; with a limit per index, the pods carry the count.
FAILURES = "batch.kubernetes.io/job-index-failure-count"
_FIRST_DELAY, _LONGEST_DELAY = 10.0, 600.0  # before a pod that failed is replaced
_MOST_UNCOUNTED = 500
_MOST_CREATED = 500


def plan(job: Object, pods: Sequence[Object], *, now: float) -> Plan:
    """`pods` are those of its namespace."""
    if is_going(job):
        return Plan(operations=let_go(job, pods))
    claimed = claim(JOB, job, POD, pods)
    look = _Look(job, claimed.mine, now)
    look.plan.operations[:0] = claimed.operations
    look.decide()
    return look.plan


def is_finished(job: Object) -> str:
    """`Complete` or `Failed`, or nothing."""
    for type in ("Complete", "Failed"):
        found = condition(job, type)
        if found is not None and found["status"] == "True":
            return type
    return ""


def let_go(job: Object, pods: Sequence[Object]) -> list[Operation]:
    """Nobody will count them any more: they must not wait for it."""
    uid = meta(job)["uid"]
    return [
        release(pod)
        for pod in pods
        if TRACKING in (meta(pod).get("finalizers") or ())
        and any(o["uid"] == uid for o in meta(pod).get("ownerReferences") or ())
    ]


def release(pod: Object) -> Patch:
    left = [f for f in meta(pod).get("finalizers") or () if f != TRACKING]
    return Patch(POD, pod, {"metadata": {"finalizers": left or None}})


class _Look:
    def __init__(self, job: Object, pods: Sequence[Object], now: float) -> None:
        self.job, self.spec, self.pods, self.now = job, job["spec"], pods, now
        self.status: dict[str, Any] = dict(status_of(job))
        self.conditions: list[Mapping[str, Any]] = list(self.status.get("conditions") or ())
        self.plan = Plan()
        self.indexed = self.spec.get("completionMode") == "Indexed"
        self.per_index: int | None = self.spec.get("backoffLimitPerIndex")
        self.failed_indexes = indexes.parse(self.status.get("failedIndexes") or "")
        self.active = [pod for pod in pods if is_active(pod)]
        self.terminating = [
            p for p in pods if is_going(p) and phase_of(p) not in ("Succeeded", "Failed")
        ]

    def decide(self) -> None:
        if is_finished(self.job):
            self.plan.operations.extend(
                release(p) for p in self.pods if TRACKING in (meta(p).get("finalizers") or ())
            )
            self._expire()
            return
        self._begin()
        self._count()
        self._judge()
        ending = self._ending()
        if ending is not None:
            self._end_pods()
            if not self.active and not self._left():
                self._finish(ending)
        elif self.spec.get("suspend"):
            self._drop(self.active)
        else:
            self._scale()
        self._say()

    # Time.

    def _begin(self) -> None:
        suspended = condition(self.job, "Suspended")
        if self.spec.get("suspend"):
            if suspended is None or suspended["status"] != "True":
                self._set("Suspended", "JobSuspended", "Job suspended")
                self._tell("Suspended", "Job suspended")
                self.status["startTime"] = None
            return
        if suspended is not None and suspended["status"] == "True":
            self._set("Suspended", "JobResumed", "Job resumed", status="False")
            self._tell("Resumed", "Job resumed")
            self.status["startTime"] = stamp(self.now)
        elif not self.status.get("startTime"):
            self.status["startTime"] = stamp(self.now)

    def _expire(self) -> None:
        ttl = self.spec.get("ttlSecondsAfterFinished")
        if ttl is None:
            return
        ended = condition(self.job, is_finished(self.job))
        assert ended is not None
        left = seconds(ended["lastTransitionTime"]) + ttl - self.now
        if left <= 0:
            self.plan.operations.append(Delete(JOB, self.job, self.job))
        else:
            self.plan.wait(left)

    # Counting.

    def _count(self) -> None:
        waiting = self.status.get("uncountedTerminatedPods") or {}
        uncounted = {end: list(waiting.get(end) or ()) for end in ("succeeded", "failed")}
        held = {meta(p)["uid"] for p in self.pods if TRACKING in (meta(p).get("finalizers") or ())}
        counts = {end: self.status.get(end) or 0 for end in uncounted}
        for end, uids in uncounted.items():
            done = [uid for uid in uids if uid not in held]
            counts[end] += len(done)
            uncounted[end] = [uid for uid in uids if uid in held]
        completed = indexes.parse(self.status.get("completedIndexes") or "")
        self._count_indexes()
        room = _MOST_UNCOUNTED - sum(map(len, uncounted.values()))
        for pod in self.pods:
            uid, end = meta(pod)["uid"], self._end_of(pod)
            if uid not in held or not end or uid in uncounted["succeeded"] + uncounted["failed"]:
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
        # In status before their finalizers go; see above.
        self.released = [
            release(pod)
            for pod in self.pods
            if meta(pod)["uid"] in held
            and meta(pod)["uid"] in uncounted["succeeded"] + uncounted["failed"]
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
        """An index fails for good by its own limit, or by a rule that says so."""
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
        Whether a failed pod is all that knows how often its index has failed.

        It stays until the pod after it carries the count on, whoever deletes it.
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
        phase = phase_of(pod)
        if phase == "Succeeded":
            return "succeeded"
        if phase == "Failed":
            return "failed"
        if not is_going(pod):
            return ""
        # A deleted pod may never tell its end. With `Failed` it is waited for, until its
        # node has let go of it: then nobody is left to tell.
        patient = self.spec.get("podReplacementPolicy") == "Failed"
        return "" if patient and meta(pod).get("deletionGracePeriodSeconds") else "failed"

    def _left(self) -> bool:
        return bool(self.terminating) or bool(self.status["uncountedTerminatedPods"])

    # Judging.

    def _judge(self) -> None:
        if self._ending() is not None:
            return
        failed = [pod for pod in self.pods if self._end_of(pod) == "failed"]
        for pod in failed:
            action, why = podfailures.verdict(self.job, pod)
            if action == "FailJob":
                self._set("FailureTarget", "PodFailurePolicy", why)
                return
        limit = self.spec.get("backoffLimit", 6)
        if self.failed > limit or self._restarts_exceed(limit):
            words = "Job has reached the specified backoff limit"
            self._set("FailureTarget", "BackoffLimitExceeded", words)
            return
        if self.per_index is not None and self._indexes_exceed():
            return
        started, deadline = self.status.get("startTime"), self.spec.get("activeDeadlineSeconds")
        if deadline is not None and started and not self.spec.get("suspend"):
            left = seconds(started) + deadline - self.now
            if left <= 0:
                words = "Job was active longer than specified deadline"
                self._set("FailureTarget", "DeadlineExceeded", words)
                return
            self.plan.wait(left)
        if (rule := self._policy_met()) is not None:
            self._set("SuccessCriteriaMet", "SuccessPolicy", f"Matched rules at index {rule}")
            return
        completions = self.spec.get("completions")
        if completions is None:
            done = self.succeeded > 0 and not self.active and not self.terminating
        else:
            done = self.succeeded >= completions
        if done:
            words = "Reached expected number of succeeded pods"
            self._set("SuccessCriteriaMet", "CompletionsReached", words)

    def _indexes_exceed(self) -> bool:
        most, failed = self.spec.get("maxFailedIndexes"), len(self.failed_indexes)
        if most is not None and failed > most:
            words = "Job has exceeded the specified maximal number of failed indexes"
            self._set("FailureTarget", "MaxFailedIndexesExceeded", words)
            return True
        over = failed + len(self.completed - self.failed_indexes)
        if failed and over >= (self.spec.get("completions") or 0):
            self._set("FailureTarget", "FailedIndexes", "Job has failed indexes")
            return True
        return False

    def _policy_met(self) -> int | None:
        """The first rule of successPolicy that the completed indexes keep."""
        for at, rule in enumerate((self.spec.get("successPolicy") or {}).get("rules") or ()):
            wanted = rule.get("succeededIndexes")
            chosen = self.completed if wanted is None else self.completed & indexes.parse(wanted)
            count = rule.get("succeededCount")
            if len(chosen) >= (len(indexes.parse(wanted or "")) if count is None else count):
                return at
        return None

    def _restarts_exceed(self, limit: int) -> bool:
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
        wanted = ("SuccessCriteriaMet", "FailureTarget")
        return next(
            (c for c in self.conditions if c["type"] in wanted and c["status"] == "True"), None
        )

    def _finish(self, ending: Mapping[str, Any]) -> None:
        good = ending["type"] == "SuccessCriteriaMet"
        self._set("Complete" if good else "Failed", ending["reason"], ending["message"])
        if good:
            self.status["completionTime"] = stamp(self.now)
            self._tell("Completed", "Job completed")
        else:
            self._tell(ending["reason"], ending["message"], "Warning")

    # Pods.

    def _end_pods(self) -> None:
        self.plan.operations.extend(Delete(POD, pod, self.job) for pod in self.active)

    def _drop(self, pods: Sequence[Object]) -> None:
        """Not wanted any more, through no fault of theirs: they go without being counted."""
        for pod in pods:
            self.plan.operations += [release(pod), Delete(POD, pod, self.job)]

    def _scale(self) -> None:
        parallelism, completions = self.spec.get("parallelism", 1), self.spec.get("completions")
        in_place = [*self.active]
        if self.spec.get("podReplacementPolicy") == "Failed":
            in_place += [p for p in self.terminating if self._end_of(p) != "failed"]
        if self.indexed:
            self._scale_indexes(parallelism, completions or 0, in_place)
            return
        if completions is None:
            wanted = len(self.active) if self.succeeded else parallelism
        else:
            wanted = min(parallelism, max(0, completions - self.succeeded))
        if len(self.active) > wanted:
            ranked = sorted(self.active, key=lambda p: (is_ready(p), meta(p)["name"]))
            extra = ranked[: len(self.active) - wanted]
            self._drop(extra)
        missing = wanted - len(in_place)
        if missing > 0 and not self._backs_off(self.pods):
            self.plan.operations.extend(self._pod() for _ in range(min(missing, _MOST_CREATED)))

    def _scale_indexes(self, parallelism: int, completions: int, in_place: list[Object]) -> None:
        taken: set[int] = set()
        for pod in sorted(in_place, key=lambda p: meta(p)["name"]):
            index = _index(pod)
            over = taken | self.completed | self.failed_indexes
            useless = index is None or index >= completions or index in over
            if useless or (len(taken) >= parallelism and pod in self.active):
                if pod in self.active:
                    self._drop([pod])
            elif index is not None:
                taken.add(index)
        over = self.completed | self.failed_indexes
        room = min(parallelism, completions - len(over)) - len(taken)
        free = (i for i in range(completions) if i not in taken and i not in over)
        if self.per_index is not None:  # each index waits for its own failures
            free = (i for i in free if not self._backs_off(self._of_index(i)))
        elif room > 0 and self._backs_off(self.pods):
            return
        for _ in range(min(room, _MOST_CREATED)):
            if (index := next(free, None)) is not None:
                self.plan.operations.append(self._pod(index))

    def _of_index(self, index: int) -> list[Object]:
        return [pod for pod in self.pods if _index(pod) == index]

    def _backs_off(self, pods: Sequence[Object]) -> bool:
        """After each failure in a row the next pod waits twice as long."""
        ends = [(_ended_at(p), phase_of(p)) for p in pods if phase_of(p) in ("Succeeded", "Failed")]
        success = max((at for at, phase in ends if phase == "Succeeded"), default=0.0)
        failures = [at for at, phase in ends if phase == "Failed" and at > success]
        if not failures:
            return False
        delay = min(_LONGEST_DELAY, _FIRST_DELAY * 2 ** min(len(failures) - 1, 10))
        left: float = max(failures) + delay - self.now
        if left > 0:
            self.plan.wait(left)
        return left > 0

    def _pod(self, index: int | None = None) -> Create:
        pod = pod_from(self.spec["template"], JOB, self.job)
        metadata, name = pod["metadata"], meta(self.job)["name"]
        metadata["finalizers"] = [*metadata.get("finalizers", ()), TRACKING]
        if index is None:
            metadata["generateName"] = f"{name}-"
            return Create(POD, pod, self.job)
        metadata["generateName"] = f"{name}-{index}-"
        metadata["labels"] = {**metadata.get("labels", {}), INDEX: str(index)}
        metadata["annotations"] = {**metadata.get("annotations", {}), INDEX: str(index)}
        if self.per_index is not None:
            before = [
                _failures(one) + (podfailures.verdict(self.job, one)[0] != "Ignore")
                for one in self._of_index(index)
                if self._end_of(one) == "failed"
            ]
            metadata["annotations"][FAILURES] = str(max(before, default=0))
        pod["spec"].setdefault("hostname", f"{name}-{index}")
        source = {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.labels['{INDEX}']"}}
        for group in ("initContainers", "containers"):
            for container in pod["spec"].get(group) or ():
                env = container.setdefault("env", [])
                if all(variable["name"] != "JOB_COMPLETION_INDEX" for variable in env):
                    env.append({"name": "JOB_COMPLETION_INDEX", "valueFrom": source})
        return Create(POD, pod, self.job)

    # Status.

    def _set(self, type: str, reason: str, message: str, *, status: str = "True") -> None:
        now = stamp(self.now)
        new = {
            "type": type,
            "status": status,
            "reason": reason,
            "message": message,
            "lastProbeTime": now,
            "lastTransitionTime": now,
        }
        self.conditions = with_condition(self.conditions, new)

    def _tell(self, reason: str, message: str, type: Any = "Normal") -> None:
        self.plan.operations.append(Record(self.job, reason, message, type))

    def _say(self) -> None:
        gone = {meta(o.obj)["uid"] for o in self.plan.operations if isinstance(o, Delete)}
        left = [pod for pod in self.active if meta(pod)["uid"] not in gone]
        made = sum(isinstance(o, Create) for o in self.plan.operations)
        status = {
            **without(self.status, "uncountedTerminatedPods"),
            "active": len(left) + made,
            "ready": sum(is_ready(pod) for pod in left),
            "terminating": len(self.terminating) + len(gone),
            "conditions": self.conditions,
        }
        finished = any(c["type"] in ("Complete", "Failed") for c in self.conditions)
        if finished:
            status["active"] = status["ready"] = status["terminating"] = 0
        change = status_patch(JOB, self.job, status, zeros=("ready", "terminating"))
        uncounted = status_of(self.job).get("uncountedTerminatedPods")
        wanted = self.status["uncountedTerminatedPods"]
        if uncounted != wanted:
            # A map that is merged: what is no longer in it must be said.
            merged = {**dict.fromkeys(uncounted or (), None), **wanted}
            given = dict(change.change["status"]) if change else {}
            given["uncountedTerminatedPods"] = merged
            change = Patch(JOB, self.job, {"status": given}, "status")
        # First the record of what ended, then the finalizers: the order is the safety.
        if change is not None:
            self.plan.operations.insert(0, change)
        self.plan.operations.extend(self.released)


def _index(pod: Object) -> int | None:
    text = annotations_of(pod).get(INDEX, "")
    return int(text) if text.isdecimal() else None


def _failures(pod: Object) -> int:
    text = annotations_of(pod).get(FAILURES, "")
    return int(text) if text.isdecimal() else 0


def _ended_at(pod: Object) -> float:
    """When it ended, as well as can be told."""
    ends = [
        terminated["finishedAt"]
        for container in status_of(pod).get("containerStatuses") or ()
        if (terminated := (container.get("state") or {}).get("terminated"))
        and terminated.get("finishedAt")
    ]
    if ends:
        return max(map(seconds, ends))
    ready = condition(pod, "Ready")
    known = (ready or {}).get("lastTransitionTime") or meta(pod).get("deletionTimestamp")
    return seconds(known or meta(pod).get("creationTimestamp") or "1970-01-01T00:00:00Z")
