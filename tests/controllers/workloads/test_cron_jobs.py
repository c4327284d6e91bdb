"""A CronJob makes a Job at each of its times. Real time has a minute to wait: one story only."""

import asyncio
import itertools

from bidplane.api.kinds import CRON_JOB, JOB, POD
from bidplane.api.times import parse_rfc3339

from .conftest import template


def spec(schedule="* * * * *", **more):
    pod_template = template("job", restartPolicy="Never")
    return {"schedule": schedule, "jobTemplate": {"spec": {"template": pod_template}}, **more}


def test_a_job_is_named_after_its_minute(stories):
    async def story(site):
        await site.create(CRON_JOB, "tick", spec())
        await asyncio.sleep(60 - site.clock.now() % 60)

        async def one():
            return await site.all(JOB)

        (job,) = await site.until(one)
        when = job["metadata"]["annotations"]["batch.kubernetes.io/cronjob-scheduled-timestamp"]
        assert job["metadata"]["name"] == f"tick-{int(parse_rfc3339(when)) // 60}"
        (owner,) = job["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["controller"]) == ("CronJob", "tick", True)
        status = await site.status(CRON_JOB, "tick", lastScheduleTime=when)
        assert status["active"][0]["name"] == job["metadata"]["name"]
        await site.ends(*await site.pods_are(1))
        await site.condition(JOB, job["metadata"]["name"], "Complete")
        await site.status(CRON_JOB, "tick", active=None)

    stories(story)


def test_an_hour_of_ticks_keeps_three(embedded):
    async def story(site):
        await site.create(CRON_JOB, "tick", spec("*/10 * * * *"))
        for _ in range(60):
            await asyncio.sleep(60)
            running = [p for p in await site.pods() if not p["status"].get("containerStatuses")]
            await site.ends(*running)
        await site.steady()
        jobs = await site.all(JOB)
        assert len(jobs) == 3
        assert len(await site.all(POD)) == 3
        gaps = {
            int(later["metadata"]["name"].split("-")[1])
            - int(job["metadata"]["name"].split("-")[1])
            for job, later in itertools.pairwise(jobs)
        }
        assert gaps == {10}

    embedded(story)


def test_forbid_waits_replace_does_not(embedded):
    async def story(site):
        await site.create(CRON_JOB, "forbid", spec(concurrencyPolicy="Forbid"))
        await site.create(CRON_JOB, "replace", spec(concurrencyPolicy="Replace"))
        await site.create(CRON_JOB, "asleep", spec(suspend=True))
        await asyncio.sleep(200)
        names = [job["metadata"]["name"] for job in await site.all(JOB)]
        assert [name.split("-")[0] for name in names] == ["forbid", "replace"]
        first = int(names[0].split("-")[1])
        assert int(names[1].split("-")[1]) > first, "the one that ran was replaced"

    embedded(story)
