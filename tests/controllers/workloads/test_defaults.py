"""What a workload's author does not say, the server says for them: the same on both."""

from bidplane.api.kinds import CRON_JOB, JOB, STATEFUL_SET

from .conftest import template


def without_template(spec):
    return {key: value for key, value in spec.items() if key not in ("template", "jobTemplate")}


def test_a_stateful_set(stories):
    async def story(site):
        selector = {"matchLabels": {"app": "web"}}
        spec = {"selector": selector, "template": template(), "serviceName": "db"}
        created = await site.create(STATEFUL_SET, "db", spec)
        assert without_template(created["spec"]) == {
            "replicas": 1,
            "selector": selector,
            "serviceName": "db",
            "podManagementPolicy": "OrderedReady",
            "updateStrategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"partition": 0, "maxUnavailable": 1},
            },
            "revisionHistoryLimit": 10,
            "persistentVolumeClaimRetentionPolicy": {
                "whenDeleted": "Retain",
                "whenScaled": "Retain",
            },
        }

    stories(story)


def test_a_cron_job(stories):
    async def story(site):
        job = {"spec": {"template": template(restartPolicy="Never")}}
        created = await site.create(CRON_JOB, "tick", {"schedule": "0 0 1 1 *", "jobTemplate": job})
        assert without_template(created["spec"]) == {
            "schedule": "0 0 1 1 *",
            "concurrencyPolicy": "Allow",
            "suspend": False,
            "successfulJobsHistoryLimit": 3,
            "failedJobsHistoryLimit": 1,
        }
        pod = created["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        assert pod["terminationGracePeriodSeconds"] == 30

    stories(story)


def test_a_job(stories):
    async def story(site):
        spec = {"template": template(restartPolicy="Never"), "suspend": True}
        created = await site.create(JOB, "train", spec)
        uid = created["metadata"]["uid"]
        assert without_template(created["spec"]) == {
            "parallelism": 1,
            "completions": 1,
            "backoffLimit": 6,
            "selector": {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}},
            "manualSelector": False,
            "completionMode": "NonIndexed",
            "suspend": True,
            "podReplacementPolicy": "TerminatingOrFailed",
        }
        rule = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
        spec = {**spec, "podFailurePolicy": {"rules": [rule]}}
        created = await site.create(JOB, "careful", spec)
        assert created["spec"]["podReplacementPolicy"] == "Failed"

    stories(story)
