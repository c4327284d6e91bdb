"""
A CronJob: a Job at each scheduled time, named after the minute, so that none is created twice.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from bidplane.api.kinds import CRON_JOB, JOB, Object
from bidplane.api.objects import annotations_of, is_deleted, metadata_of, status_of
from bidplane.api.times import parse_rfc3339, rfc3339
from bidplane.core.workloads.common import is_controlled_by, owner_reference, status_patch
from bidplane.core.workloads.jobs import is_finished
from bidplane.core.workloads.plan import CreateObject, Delete, RecordEvent, WorkloadPlan
from bidplane.wire import cron

SCHEDULED = "batch.kubernetes.io/cronjob-scheduled-timestamp"
_MOST_MISSED = 100  # after so many missed times it stops counting them one by one


def plan(cron_job: Object, jobs: Sequence[Object], *, now: float) -> WorkloadPlan:
    """Plan for a CronJob; `jobs` are those of its namespace."""
    owned = [job for job in jobs if is_controlled_by(job, cron_job)]
    planner = _CronJobPlanner(cron_job, owned, now)
    if not is_deleted(cron_job):
        planner.decide()
    return planner.plan


class _CronJobPlanner:
    """The planning of one CronJob."""

    def __init__(self, cron_job: Object, jobs: Sequence[Object], now: float) -> None:
        self.cron, self.spec, self.jobs, self.now = cron_job, cron_job["spec"], jobs, now
        self.status: dict[str, Any] = dict(status_of(cron_job))
        running = [job for job in jobs if not is_finished(job) and not is_deleted(job)]
        # A Job that a user created from our template is owned by us, but was not scheduled.
        self.active = [job for job in running if SCHEDULED in annotations_of(job)]
        self.strange = [job for job in running if SCHEDULED not in annotations_of(job)]
        self.plan = WorkloadPlan()

    def decide(self) -> None:
        """Fill the plan."""
        for job in self.strange:
            message = "Saw a job that the controller did not create or forgot: "
            message += str(metadata_of(job)["name"])
            self.plan.operations.append(RecordEvent(self.cron, "UnexpectedJob", message, "Warning"))
        self._trim_history("successfulJobsHistoryLimit", 3, "Complete")
        self._trim_history("failedJobsHistoryLimit", 1, "Failed")
        self._note_success()
        if not self.spec.get("suspend"):
            self._schedule()
        self._set_status()

    def _schedule(self) -> None:
        """Start the Job that is due, and wait for the next time."""
        try:
            times = cron.parse(self.spec["schedule"])
            zone = self.spec.get("timeZone") or "UTC"
            times.after(self.now, zone)
        except (ValueError, KeyError, OSError) as error:
            message = f"unparseable schedule: {self.spec['schedule']!r}: {error}"
            self.plan.operations.append(
                RecordEvent(self.cron, "UnparseableSchedule", message, "Warning")
            )
            return
        due = self._due(times, zone)
        if due is not None:
            self._start_job(due)
        next_time = times.after(max(self.now, due or 0.0), zone)
        if next_time is not None:
            self.plan.wait(next_time - self.now)

    def _due(self, times: cron.CronSchedule, zone: str) -> float | None:
        """Return the latest scheduled time that has passed without a Job; None if there is none."""
        since = parse_rfc3339(
            self.status.get("lastScheduleTime") or metadata_of(self.cron)["creationTimestamp"]
        )
        deadline = self.spec.get("startingDeadlineSeconds")
        if deadline is not None:
            since = max(since, self.now - deadline)
        latest: float | None = None
        missed = 0
        time = times.after(since, zone)
        while time is not None and time <= self.now:
            latest, missed = time, missed + 1
            if missed == _MOST_MISSED:  # after a long absence, continue from close to now
                step = (times.after(time, zone) or time) - time
                time = max(time, self.now - 2 * max(step, 60.0))
                message = "too many missed start times. Set or decrease startingDeadlineSeconds"
                self.plan.operations.append(
                    RecordEvent(
                        self.cron, "TooManyMissedTimes", f"{message} or check clock skew", "Warning"
                    )
                )
            time = times.after(time, zone)
        return latest

    def _start_job(self, due: float) -> None:
        """Create the Job of a scheduled time, as the concurrency policy allows."""
        name = f"{metadata_of(self.cron)['name']}-{int(due) // 60}"
        if any(metadata_of(job)["name"] == name for job in self.jobs):
            self.status["lastScheduleTime"] = rfc3339(due)  # created before the status was written
            return
        policy = self.spec.get("concurrencyPolicy", "Allow")
        if policy == "Forbid" and self.active:
            message = (
                "Not starting job because prior execution is running and concurrency policy is"
            )
            self.plan.operations.append(
                RecordEvent(self.cron, "JobAlreadyActive", f"{message} Forbid")
            )
            return
        if policy == "Replace":
            for job in self.active:
                self.plan.operations.append(Delete(JOB, job, self.cron))
            self.active = []
        template = self.spec["jobTemplate"]
        template_metadata = template.get("metadata") or {}
        job = {
            "apiVersion": JOB.api_version,
            "kind": JOB.kind,
            "metadata": {
                "name": name,
                "namespace": metadata_of(self.cron)["namespace"],
                "labels": dict(template_metadata.get("labels") or {}),
                "annotations": {
                    **(template_metadata.get("annotations") or {}),
                    SCHEDULED: rfc3339(due),
                },
                "ownerReferences": [owner_reference(CRON_JOB, self.cron)],
            },
            "spec": copy.deepcopy(template["spec"]),
        }
        self.plan.operations.append(CreateObject(JOB, job, self.cron))
        self.status["lastScheduleTime"] = rfc3339(due)

    def _trim_history(self, field: str, default: int, end: str) -> None:
        """Delete the oldest Jobs with this end beyond the history limit."""
        limit = self.spec.get(field, default)
        ended = [job for job in self.jobs if is_finished(job) == end and not is_deleted(job)]
        ended.sort(
            key=lambda job: (status_of(job).get("startTime") or "", metadata_of(job)["name"])
        )
        for job in ended[: max(0, len(ended) - limit)]:
            self.plan.operations.append(Delete(JOB, job, self.cron))

    def _note_success(self) -> None:
        """Update the time of the last success."""
        ends = [
            str(status_of(job)["completionTime"])
            for job in self.jobs
            if is_finished(job) == "Complete" and status_of(job).get("completionTime")
        ]
        if ends:
            self.status["lastSuccessfulTime"] = max(
                [*ends, self.status.get("lastSuccessfulTime") or ""]
            )

    def _set_status(self) -> None:
        """Set the plan's status."""
        active = [
            {
                "apiVersion": JOB.api_version,
                "kind": JOB.kind,
                "namespace": metadata_of(job)["namespace"],
                "name": metadata_of(job)["name"],
                "uid": metadata_of(job)["uid"],
                "resourceVersion": metadata_of(job)["resourceVersion"],
            }
            for job in sorted(self.active, key=lambda job: str(metadata_of(job)["name"]))
        ]
        current = {
            reference["uid"]: reference for reference in status_of(self.cron).get("active") or ()
        }
        if current.keys() == {reference["uid"] for reference in active}:
            active = list(current.values())
        self.plan.status = status_patch(
            CRON_JOB,
            self.cron,
            {
                "active": active,
                "lastScheduleTime": self.status.get("lastScheduleTime"),
                "lastSuccessfulTime": self.status.get("lastSuccessfulTime"),
            },
        )
