"""A StatefulSet's pods have names, an order, and revisions."""

from bidplane.api.kinds import CONTROLLER_REVISION, POD, STATEFUL_SET, VOLUME_CLAIM

from .conftest import template


def spec(replicas=2, **more):
    return {
        "replicas": replicas,
        "serviceName": "db",
        "selector": {"matchLabels": {"app": "web"}},
        "template": template(),
        **more,
    }


def names(pods):
    return [pod["metadata"]["name"] for pod in pods]


async def rolled_out(site, replicas=2, **more):
    await site.create(STATEFUL_SET, "db", spec(replicas, **more))
    for ordinal in range(replicas):
        pods = await site.pods_are(ordinal + 1)
        await site.ready(pods[ordinal])
    await site.status(STATEFUL_SET, "db", readyReplicas=replicas, currentReplicas=replicas)


def test_one_after_the_other(stories):
    async def story(site):
        await site.create(STATEFUL_SET, "db", spec())
        (first,) = await site.pods_are(1)
        await site.steady(0.5)
        assert names(await site.pods()) == ["db-0"], "the second waits for the first"
        labels = first["metadata"]["labels"]
        assert labels["statefulset.kubernetes.io/pod-name"] == "db-0"
        assert labels["apps.kubernetes.io/pod-index"] == "0"
        assert (first["spec"]["hostname"], first["spec"]["subdomain"]) == ("db-0", "db")
        (revision,) = await site.all(CONTROLLER_REVISION)
        assert labels["controller-revision-hash"] == revision["metadata"]["name"]
        assert revision["revision"] == 1
        await site.ready(first)
        await site.ready((await site.pods_are(2))[1])
        name = revision["metadata"]["name"]
        await site.status(
            STATEFUL_SET, "db", replicas=2, readyReplicas=2, availableReplicas=2,
            currentReplicas=2, updatedReplicas=2, currentRevision=name, updateRevision=name,
            observedGeneration=1,
        )  # fmt: skip

    stories(story)


def test_all_at_once(stories):
    async def story(site):
        await site.create(STATEFUL_SET, "db", spec(3, podManagementPolicy="Parallel"))
        assert names(await site.pods_are(3)) == ["db-0", "db-1", "db-2"]

    stories(story)


def test_the_last_goes_first(stories):
    async def story(site):
        await rolled_out(site, 3)
        await site.patch(STATEFUL_SET, "db", {"spec": {"replicas": 1}})
        await site.pods_are(1)
        assert names(await site.pods()) == ["db-0"]
        await site.status(STATEFUL_SET, "db", replicas=1, readyReplicas=1)

    stories(story)


def test_a_pod_that_goes_comes_back_with_its_name(stories):
    async def story(site):
        await rolled_out(site)
        before = await site.get(POD, "db-0")
        await site.delete(POD, "db-0", grace_seconds=0)

        async def back():
            pod_object = await site.get(POD, "db-0")
            return pod_object and pod_object["metadata"]["uid"] != before["metadata"]["uid"]

        await site.until(back)

    stories(story)


def test_a_new_template_rolls_from_the_last_to_the_partition(stories):
    async def story(site):
        await rolled_out(site, 3)
        strategy = {"type": "RollingUpdate", "rollingUpdate": {"partition": 1}}
        change = {"updateStrategy": strategy, "template": template(image="x:2")}
        await site.patch(STATEFUL_SET, "db", {"spec": change})

        async def updated():
            for pod in await site.pods():
                if (pod.get("status") or {}).get("phase") != "Running":
                    await site.ready(pod)
            status = (await site.get(STATEFUL_SET, "db"))["status"]
            return status.get("updatedReplicas") == 2 and status.get("readyReplicas") == 3

        await site.until(updated)
        images = {p["metadata"]["name"]: p["spec"]["containers"][0]["image"]
                  for p in await site.pods()}  # fmt: skip
        assert images == {"db-0": "x:1", "db-1": "x:2", "db-2": "x:2"}
        status = (await site.get(STATEFUL_SET, "db"))["status"]
        assert status["currentRevision"] != status["updateRevision"]
        await site.patch(
            STATEFUL_SET, "db", {"spec": {"updateStrategy": {"rollingUpdate": {"partition": 0}}}}
        )

        async def whole():
            await updated()
            status = (await site.get(STATEFUL_SET, "db"))["status"]
            return status["currentRevision"] == status["updateRevision"]

        await site.until(whole)
        assert len(await site.all(CONTROLLER_REVISION)) == 2

    stories(story)


def test_a_pod_has_a_volume_of_its_own(stories):
    async def story(site):
        request = {"resources": {"requests": {"storage": "1Gi"}}, "accessModes": ["ReadWriteOnce"]}
        claims = [{"metadata": {"name": "data"}, "spec": request}]
        await site.create(STATEFUL_SET, "db", spec(1, volumeClaimTemplates=claims))
        (pod,) = await site.pods_are(1)
        assert names(await site.all(VOLUME_CLAIM)) == ["data-db-0"]
        volume = next(v for v in pod["spec"]["volumes"] if v["name"] == "data")
        assert volume["persistentVolumeClaim"]["claimName"] == "data-db-0"

    stories(story)


def test_no_more_are_away_at_once_than_it_allows(stories):
    async def story(site):
        await rolled_out(site, 4)
        rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 2}}
        change = {"updateStrategy": rolling, "template": template(image="x:2")}
        await site.patch(STATEFUL_SET, "db", {"spec": change})

        async def two():
            pods = await site.pods()
            new = [p for p in pods if p["spec"]["containers"][0]["image"] == "x:2"]
            return new if new and len(pods) >= 3 else None

        await site.until(two)
        await site.steady(0.5)
        old = [p for p in await site.pods() if p["spec"]["containers"][0]["image"] == "x:1"]
        assert names(old) == ["db-0", "db-1"], "two went, the others wait for them"

    stories(story)


CLAIM = {
    "metadata": {"name": "data"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
}


async def claims_are(site, *expected_names):
    async def so():
        return names(await site.all(VOLUME_CLAIM)) == list(expected_names)

    await site.until(so)


def test_claims_go_with_what_they_were_made_for(stories):
    async def story(site):
        policy = {"whenScaled": "Delete", "whenDeleted": "Delete"}
        await rolled_out(
            site, volumeClaimTemplates=[CLAIM], persistentVolumeClaimRetentionPolicy=policy
        )
        await claims_are(site, "data-db-0", "data-db-1")

        async def owned():
            volume_claim = await site.get(VOLUME_CLAIM, "data-db-0")
            return volume_claim["metadata"].get("ownerReferences")

        (owner,) = await site.until(owned)
        assert (owner["kind"], owner["name"], owner.get("controller")) == (
            "StatefulSet",
            "db",
            True,
        )
        await site.patch(STATEFUL_SET, "db", {"spec": {"replicas": 1}})
        await claims_are(site, "data-db-0")
        await site.delete(STATEFUL_SET, "db")
        await claims_are(site)

    stories(story)


def test_claims_stay_unless_it_is_said(stories):
    async def story(site):
        await rolled_out(site, volumeClaimTemplates=[CLAIM])
        await site.patch(STATEFUL_SET, "db", {"spec": {"replicas": 0}})
        await site.pods_are(0)
        await site.delete(STATEFUL_SET, "db")
        await site.steady()
        await claims_are(site, "data-db-0", "data-db-1")

    stories(story)
