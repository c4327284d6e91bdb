"""
A CronJob: a Job at each of its times, named after the minute, so that none is made twice.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from bidplane.api.kinds import CRON_JOB, JOB, Object
from bidplane.core.workloads.common import (
    annotations_of,
    is_controlled_by,
    is_going,
    meta,
    owner_reference,
    seconds,
    stamp,
    status_of,
    status_patch,
)
from bidplane.core.workloads.jobs import is_finished
from bidplane.core.workloads.plan import Create, Delete, Plan, Record
from bidplane.wire import cron

SCHEDULED = "batch.kubernetes.io/cronjob-scheduled-timestamp"
_MOST_MISSED = 100  # more than this many missed times are not counted one by one


def plan(cron_job: Object, jobs: Sequence[Object], *, now: float) -> Plan:
    """`jobs` are those of its namespace."""
    mine = [job for job in jobs if is_controlled_by(job, cron_job)]
    look = _Look(cron_job, mine, now)
    if not is_going(cron_job):
        look.decide()
    return look.plan


class _Look:
    def __init__(self, cron_job: Object, jobs: Sequence[Object], now: float) -> None:
        self.cron, self.spec, self.jobs, self.now = cron_job, cron_job["spec"], jobs, now
        self.status: dict[str, Any] = dict(status_of(cron_job))
        running = [job for job in jobs if not is_finished(job) and not is_going(job)]
        # One that somebody made of our template is owned by us, and none of ours.
        self.active = [job for job in running if SCHEDULED in annotations_of(job)]
        self.strange = [job for job in running if SCHEDULED not in annotations_of(job)]
        self.plan = Plan()

    def decide(self) -> None:
        for job in self.strange:
            words = "Saw a job that the controller did not create or forgot: "
            words += str(meta(job)["name"])
            self.plan.operations.append(Record(self.cron, "UnexpectedJob", words, "Warning"))
        self._forget("successfulJobsHistoryLimit", 3, "Complete")
        self._forget("failedJobsHistoryLimit", 1, "Failed")
        self._note_success()
        if not self.spec.get("suspend"):
            self._keep_time()
        self._say()

    def _keep_time(self) -> None:
        try:
            times = cron.parse(self.spec["schedule"])
            zone = self.spec.get("timeZone") or "UTC"
            times.after(self.now, zone)
        except (ValueError, KeyError, OSError) as error:
            words = f"unparseable schedule: {self.spec['schedule']!r}: {error}"
            self.plan.operations.append(Record(self.cron, "UnparseableSchedule", words, "Warning"))
            return
        due = self._due(times, zone)
        if due is not None:
            self._start(due)
        coming = times.after(max(self.now, due or 0.0), zone)
        if coming is not None:
            self.plan.wait(coming - self.now)

    def _due(self, times: cron.Schedule, zone: str) -> float | None:
        """The newest time that has come and was not acted on."""
        since = seconds(self.status.get("lastScheduleTime") or meta(self.cron)["creationTimestamp"])
        deadline = self.spec.get("startingDeadlineSeconds")
        if deadline is not None:
            since = max(since, self.now - deadline)
        found: float | None = None
        missed = 0
        at = times.after(since, zone)
        while at is not None and at <= self.now:
            found, missed = at, missed + 1
            if missed == _MOST_MISSED:  # away for long: go on from close to now
                step = (times.after(at, zone) or at) - at
                at = max(at, self.now - 2 * max(step, 60.0))
                words = "too many missed start times. Set or decrease startingDeadlineSeconds"
                self.plan.operations.append(
                    Record(
                        self.cron, "TooManyMissedTimes", f"{words} or check clock skew", "Warning"
                    )
                )
            at = times.after(at, zone)
        return found

    def _start(self, due: float) -> None:
        name = f"{meta(self.cron)['name']}-{int(due) // 60}"
        if any(meta(job)["name"] == name for job in self.jobs):
            self.status["lastScheduleTime"] = stamp(due)  # made before we could write so
            return
        policy = self.spec.get("concurrencyPolicy", "Allow")
        if policy == "Forbid" and self.active:
            words = "Not starting job because prior execution is running and concurrency policy is"
            self.plan.operations.append(Record(self.cron, "JobAlreadyActive", f"{words} Forbid"))
            return
        if policy == "Replace":
            for job in self.active:
                self.plan.operations.append(Delete(JOB, job, self.cron))
            self.active = []
        template = self.spec["jobTemplate"]
        given = template.get("metadata") or {}
        job = {
            "apiVersion": JOB.api_version,
            "kind": JOB.kind,
            "metadata": {
                "name": name,
                "namespace": meta(self.cron)["namespace"],
                "labels": dict(given.get("labels") or {}),
                "annotations": {**(given.get("annotations") or {}), SCHEDULED: stamp(due)},
                "ownerReferences": [owner_reference(CRON_JOB, self.cron)],
            },
            "spec": copy.deepcopy(template["spec"]),
        }
        self.plan.operations.append(Create(JOB, job, self.cron))
        self.status["lastScheduleTime"] = stamp(due)

    def _forget(self, field: str, default: int, end: str) -> None:
        limit = self.spec.get(field, default)
        ended = [job for job in self.jobs if is_finished(job) == end and not is_going(job)]
        ended.sort(key=lambda job: (status_of(job).get("startTime") or "", meta(job)["name"]))
        for job in ended[: max(0, len(ended) - limit)]:
            self.plan.operations.append(Delete(JOB, job, self.cron))

    def _note_success(self) -> None:
        ends = [
            str(status_of(job)["completionTime"])
            for job in self.jobs
            if is_finished(job) == "Complete" and status_of(job).get("completionTime")
        ]
        if ends:
            self.status["lastSuccessfulTime"] = max(
                [*ends, self.status.get("lastSuccessfulTime") or ""]
            )

    def _say(self) -> None:
        active = [
            {
                "apiVersion": JOB.api_version,
                "kind": JOB.kind,
                "namespace": meta(job)["namespace"],
                "name": meta(job)["name"],
                "uid": meta(job)["uid"],
                "resourceVersion": meta(job)["resourceVersion"],
            }
            for job in sorted(self.active, key=lambda job: str(meta(job)["name"]))
        ]
        known = {a["uid"]: a for a in status_of(self.cron).get("active") or ()}
        if known.keys() == {a["uid"] for a in active}:
            active = list(known.values())
        self.plan.status = status_patch(
            CRON_JOB,
            self.cron,
            {
                "active": active,
                "lastScheduleTime": self.status.get("lastScheduleTime"),
                "lastSuccessfulTime": self.status.get("lastSuccessfulTime"),
            },
        )
