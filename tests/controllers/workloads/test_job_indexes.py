"""An indexed Job where each index has its own fate."""

from bidplane.api.kinds import JOB, POD

from .test_jobs import INDEX, spec

FAILURES = "batch.kubernetes.io/job-index-failure-count"


def index_of(pod):
    return pod["metadata"]["annotations"][INDEX]


async def of_index(site, index, *, failures):
    """The pod of an index that has failed so often before, once it is there."""

    async def there():
        for pod in await site.pods():
            notes = pod["metadata"]["annotations"]
            phase = pod["status"].get("phase")
            if (notes[INDEX], notes[FAILURES]) == (index, failures) and phase == "Pending":
                return pod
        return None

    return await site.until(there)


def indexed(**more):
    return spec(completionMode="Indexed", completions=2, parallelism=2, **more)


def test_an_index_that_fails_too_often_does_not_stop_the_others(stories):
    async def story(site):
        await site.create(JOB, "train", indexed(backoffLimitPerIndex=1))
        await site.pods_are(2)
        await site.ends(await of_index(site, "0", failures="0"), code=1)
        await site.ends(await of_index(site, "0", failures="1"), code=1)
        status = await site.status(JOB, "train", failedIndexes="0")
        assert not any(c["type"] == "Failed" for c in status.get("conditions") or ())
        await site.ends(await of_index(site, "1", failures="0"))
        failed = await site.condition(JOB, "train", "Failed")
        assert (failed["reason"], failed["message"]) == ("FailedIndexes", "Job has failed indexes")
        status = await site.status(JOB, "train", completedIndexes="1", failedIndexes="0")
        assert (status["succeeded"], status["failed"]) == (1, 2)

    stories(story)


def test_a_rule_fails_the_index_at_once(stories):
    async def story(site):
        rule = {"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [42]}}
        await site.create(
            JOB, "train", indexed(backoffLimitPerIndex=5, podFailurePolicy={"rules": [rule]})
        )
        await site.pods_are(2)
        await site.ends(await of_index(site, "1", failures="0"), code=42)
        await site.status(JOB, "train", failedIndexes="1")
        await site.ends(await of_index(site, "0", failures="0"))
        assert (await site.condition(JOB, "train", "Failed"))["reason"] == "FailedIndexes"

    stories(story)


def test_more_failed_indexes_than_allowed_end_it(stories):
    async def story(site):
        await site.create(JOB, "train", indexed(backoffLimitPerIndex=0, maxFailedIndexes=0))
        await site.pods_are(2)
        await site.ends(await of_index(site, "1", failures="0"), code=1)
        target = await site.condition(JOB, "train", "FailureTarget")
        assert target["reason"] == "MaxFailedIndexesExceeded"

    stories(story)


def test_a_deleted_pod_does_not_take_its_count_with_it(stories):
    async def story(site):
        await site.create(JOB, "train", indexed(backoffLimitPerIndex=2))
        await site.pods_are(2)
        pod = await of_index(site, "0", failures="0")
        await site.ends(pod, code=1)
        await site.status(JOB, "train", active=1)
        await site.delete(POD, pod["metadata"]["name"])
        await of_index(site, "0", failures="1")

    stories(story)


def test_enough_is_what_the_policy_says(stories):
    async def story(site):
        rules = [{"succeededIndexes": "1"}]
        await site.create(JOB, "train", indexed(successPolicy={"rules": rules}))
        first, second = sorted(await site.pods_are(2), key=index_of)
        await site.ready(first)
        await site.ends(second)
        met = await site.condition(JOB, "train", "SuccessCriteriaMet")
        assert (met["reason"], met["message"]) == ("SuccessPolicy", "Matched rules at index 0")
        await site.condition(JOB, "train", "Complete")

    stories(story)
