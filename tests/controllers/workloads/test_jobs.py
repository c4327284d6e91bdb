"""A Job runs to its end, whichever it is."""

import pytest

from bidplane.api.kinds import JOB, POD

from .conftest import template

TRACKING = "batch.kubernetes.io/job-tracking"
INDEX = "batch.kubernetes.io/job-completion-index"


def spec(**more):
    pod_template = template("job", restartPolicy=more.pop("restartPolicy", "Never"))
    del pod_template["metadata"]
    return {"template": pod_template, **more}


def test_a_job_completes(stories):
    async def story(site):
        job = await site.create(JOB, "train", spec())
        uid = job["metadata"]["uid"]
        (pod,) = await site.pods_are(1)
        assert pod["metadata"]["generateName"] == "train-"
        assert pod["metadata"]["finalizers"] == [TRACKING]
        assert pod["metadata"]["labels"] == {
            "batch.kubernetes.io/controller-uid": uid,
            "batch.kubernetes.io/job-name": "train",
            "controller-uid": uid,
            "job-name": "train",
        }
        running = await site.status(JOB, "train", active=1, ready=0)
        assert running["startTime"]
        await site.ready(pod)
        await site.status(JOB, "train", active=1, ready=1)
        await site.ends(pod)
        complete = await site.condition(JOB, "train", "Complete")
        assert complete["reason"] == "CompletionsReached"
        assert complete["message"] == "Reached expected number of succeeded pods"
        met = await site.condition(JOB, "train", "SuccessCriteriaMet")
        assert met["reason"] == "CompletionsReached"
        done = await site.status(JOB, "train", succeeded=1, active=None, ready=0, terminating=0)
        assert done["completionTime"]
        assert done["uncountedTerminatedPods"] == {}
        assert "finalizers" not in (await site.get(POD, pod["metadata"]["name"]))["metadata"]

    stories(story)


def test_as_many_at_once_as_it_says_until_enough_succeeded(stories):
    async def story(site):
        await site.create(JOB, "train", spec(completions=3, parallelism=2))
        first, second = await site.pods_are(2)
        await site.ends(first)
        await site.status(JOB, "train", succeeded=1, active=2)
        for pod in await site.pods():
            if pod["metadata"]["name"] != first["metadata"]["name"]:
                await site.ends(pod)
        assert second
        await site.condition(JOB, "train", "Complete")
        await site.status(JOB, "train", succeeded=3, active=None)
        assert len(await site.all(POD)) == 3

    stories(story)


def test_each_index_is_done_once(stories):
    async def story(site):
        more = {"completions": 3, "parallelism": 3, "completionMode": "Indexed"}
        await site.create(JOB, "train", spec(**more))
        pods = await site.pods_are(3)
        assert [p["metadata"]["annotations"][INDEX] for p in pods] == ["0", "1", "2"]
        assert [p["metadata"]["labels"][INDEX] for p in pods] == ["0", "1", "2"]
        assert [p["spec"]["hostname"] for p in pods] == ["train-0", "train-1", "train-2"]
        (variable,) = pods[0]["spec"]["containers"][0]["env"]
        assert variable["name"] == "JOB_COMPLETION_INDEX"
        assert variable["valueFrom"]["fieldRef"]["fieldPath"] == f"metadata.labels['{INDEX}']"
        await site.ends(pods[0], pods[2])
        await site.status(JOB, "train", completedIndexes="0,2", succeeded=2, active=1)
        await site.ends(pods[1])
        await site.condition(JOB, "train", "Complete")
        await site.status(JOB, "train", completedIndexes="0-2", succeeded=3)

    stories(story)


def test_too_many_failures_end_it(stories):
    async def story(site):
        await site.create(JOB, "train", spec(backoffLimit=0))
        await site.ends(*await site.pods_are(1), code=1)
        failed = await site.condition(JOB, "train", "Failed")
        assert failed["reason"] == "BackoffLimitExceeded"
        assert failed["message"] == "Job has reached the specified backoff limit"
        await site.condition(JOB, "train", "FailureTarget")
        await site.status(JOB, "train", failed=1, active=None)

    stories(story)


def test_a_failed_pod_is_replaced_after_a_while(stories):
    async def story(site):
        await site.create(JOB, "train", spec(backoffLimit=2))
        (pod,) = await site.pods_are(1)
        await site.ends(pod, code=1)
        await site.status(JOB, "train", failed=1, active=None)
        await site.steady(3)
        assert len(await site.all(POD)) == 1, "the next waits ten seconds"
        await site.status(JOB, "train", failed=1, active=1)

    stories(story)


def test_a_deleted_pod_is_a_failure_and_is_replaced(stories):
    async def story(site):
        await site.create(JOB, "train", spec())
        (pod,) = await site.pods_are(1)
        await site.delete(POD, pod["metadata"]["name"], grace_seconds=0)
        await site.status(JOB, "train", failed=1)

        async def another():
            names = [p["metadata"]["name"] for p in await site.all(POD)]
            return len(names) == 1 and names != [pod["metadata"]["name"]]

        await site.until(another)

    stories(story)


def test_a_deadline_ends_it(stories):
    async def story(site):
        await site.create(JOB, "train", spec(activeDeadlineSeconds=1))
        failed = await site.condition(JOB, "train", "Failed")
        assert failed["reason"] == "DeadlineExceeded"
        assert failed["message"] == "Job was active longer than specified deadline"
        await site.pods_are(0)

    stories(story)


def test_a_finished_job_is_removed_after_its_time(stories):
    async def story(site):
        await site.create(JOB, "train", spec(ttlSecondsAfterFinished=1))
        await site.ends(*await site.pods_are(1))
        await site.condition(JOB, "train", "Complete")

        async def gone():
            return await site.get(JOB, "train") is None

        await site.until(gone)
        await site.pods_are(0)

    stories(story)


def test_a_suspended_job_has_no_pods_until_it_is_resumed(stories):
    async def story(site):
        await site.create(JOB, "train", spec(suspend=True))
        suspended = await site.condition(JOB, "train", "Suspended")
        assert suspended["reason"] == "JobSuspended"
        assert "startTime" not in (await site.get(JOB, "train"))["status"]
        await site.patch(JOB, "train", {"spec": {"suspend": False}})
        await site.pods_are(1)
        resumed = await site.condition(JOB, "train", "Suspended", "False")
        assert resumed["reason"] == "JobResumed"
        await site.status(JOB, "train", active=1)
        await site.patch(JOB, "train", {"spec": {"suspend": True}})
        await site.pods_are(0)
        await site.status(JOB, "train", active=None, failed=None)

    stories(story)


@pytest.mark.parametrize(
    ("action", "condition", "failed"), [("FailJob", "Failed", 1), ("Ignore", None, None)]
)
def test_a_policy_says_what_a_failure_means(stories, action, condition, failed):
    async def story(site):
        codes = {"containerName": "main", "operator": "In", "values": [42]}
        policy = {"rules": [{"action": action, "onExitCodes": codes}]}
        await site.create(JOB, "train", spec(podFailurePolicy=policy, backoffLimit=3))
        (pod,) = await site.pods_are(1)
        await site.ends(pod, code=42)
        if condition:
            current = await site.condition(JOB, "train", condition)
            assert current["reason"] == "PodFailurePolicy"
            name = f"{site.namespace}/{pod['metadata']['name']}"
            assert current["message"] == (
                f"Container main for pod {name} failed with exit code 42"
                " matching FailJob rule at index 0"
            )
        else:

            async def released():
                current = await site.get(POD, pod["metadata"]["name"])
                return "finalizers" not in current["metadata"]

            await site.until(released)
        await site.status(JOB, "train", failed=failed)

    stories(story)


def test_a_deleted_job_holds_none_of_its_pods(stories):
    async def story(site):
        await site.create(JOB, "train", spec())
        await site.pods_are(1)
        await site.client.delete(JOB, "train", site.namespace)
        if await site.pods():  # upstream keeps them by default, without their finalizer

            async def free():
                return not any(p["metadata"].get("finalizers") for p in await site.all(POD))

            await site.until(free)

    stories(story)
