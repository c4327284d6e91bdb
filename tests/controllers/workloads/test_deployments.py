"""A Deployment and its ReplicaSets, as `kubectl rollout` sees them."""

import pytest

from bidplane.api.kinds import DEPLOYMENT, REPLICA_SET

from .conftest import template

REVISION = "deployment.kubernetes.io/revision"


def deployment(replicas=3, **more):
    return {
        "replicas": replicas,
        "selector": {"matchLabels": {"app": "web"}},
        "template": template(),
        **more,
    }


def newest(sets):
    return max(sets, key=lambda s: int(s["metadata"]["annotations"][REVISION]))


async def rolled_out(site, replicas=3, **more):
    await site.create(DEPLOYMENT, "web", deployment(replicas, **more))
    await site.ready(*await site.pods_are(replicas))
    await site.status(DEPLOYMENT, "web", availableReplicas=replicas, updatedReplicas=replicas)


async def finish(site, replicas=3):
    """Be the kubelet until the newest template has all the pods."""

    async def done():
        for pod in await site.pods():
            if (pod.get("status") or {}).get("phase") != "Running":
                await site.ready(pod)
        current = await site.get(DEPLOYMENT, "web")
        status = current["status"]
        return (
            status.get("observedGeneration") == current["metadata"]["generation"]
            and status.get("updatedReplicas") == status.get("replicas") == replicas
            and status.get("availableReplicas") == replicas
        )

    await site.until(done)


def test_a_deployment_becomes_available(stories):
    async def story(site):
        await site.create(DEPLOYMENT, "web", deployment())
        pods = await site.pods_are(3)
        (owned,) = await site.all(REPLICA_SET)
        hashed = owned["metadata"]["labels"]["pod-template-hash"]
        assert owned["metadata"]["name"] == f"web-{hashed}"
        assert owned["metadata"]["annotations"][REVISION] == "1"
        assert owned["metadata"]["annotations"]["deployment.kubernetes.io/desired-replicas"] == "3"
        assert owned["metadata"]["annotations"]["deployment.kubernetes.io/max-replicas"] == "4"
        assert owned["spec"]["selector"]["matchLabels"]["pod-template-hash"] == hashed
        for pod in pods:
            assert pod["metadata"]["generateName"] == f"web-{hashed}-"
            assert pod["metadata"]["labels"] == {"app": "web", "pod-template-hash": hashed}
            (owner,) = pod["metadata"]["ownerReferences"]
            assert owner["uid"] == owned["metadata"]["uid"]
            assert owner["controller"]
            assert owner["blockOwnerDeletion"]
        unavailable = await site.condition(DEPLOYMENT, "web", "Available", "False")
        assert unavailable["reason"] == "MinimumReplicasUnavailable"
        await site.status(DEPLOYMENT, "web", replicas=3, unavailableReplicas=3)
        await site.ready(*pods)
        available = await site.condition(DEPLOYMENT, "web", "Available")
        assert available["reason"] == "MinimumReplicasAvailable"
        assert available["message"] == "Deployment has minimum availability."

        async def progressed():
            status = await site.condition(DEPLOYMENT, "web", "Progressing")
            return status if status["reason"] == "NewReplicaSetAvailable" else None

        progress = await site.until(progressed)
        expected = f'ReplicaSet "web-{hashed}" has successfully progressed.'
        assert progress["message"] == expected
        status = await site.status(
            DEPLOYMENT, "web", replicas=3, readyReplicas=3, availableReplicas=3, updatedReplicas=3,
            unavailableReplicas=None, observedGeneration=1,
        )  # fmt: skip
        assert status
        web = await site.get(DEPLOYMENT, "web")
        assert web["metadata"]["annotations"][REVISION] == "1"

    stories(story)


def test_a_new_template_rolls_within_its_bounds(stories):
    async def story(site):
        strategy = {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
        await rolled_out(site, strategy={"type": "RollingUpdate", **strategy})
        await site.patch(DEPLOYMENT, "web", {"spec": {"template": template(image="x:2")}})

        async def second():
            return len(await site.all(REPLICA_SET)) == 2

        await site.until(second)
        old, new = sorted(
            await site.all(REPLICA_SET), key=lambda s: s["metadata"]["annotations"][REVISION]
        )
        assert new["metadata"]["annotations"][REVISION] == "2"
        # One more than wanted, none less: nothing goes before the new one is ready.
        assert len(await site.pods_are(4)) == 4
        await site.steady(0.5)
        assert (await site.get(REPLICA_SET, old["metadata"]["name"]))["spec"]["replicas"] == 3
        await finish(site)
        await site.pods_are(3, "app=web")
        assert {p["spec"]["containers"][0]["image"] for p in await site.pods()} == {"x:2"}
        assert (await site.get(REPLICA_SET, old["metadata"]["name"]))["spec"]["replicas"] == 0

    stories(story)


def test_a_template_that_comes_back_is_the_revision_it_was(stories):
    async def story(site):
        await rolled_out(site)
        (first,) = await site.all(REPLICA_SET)
        await site.patch(DEPLOYMENT, "web", {"spec": {"template": template(image="x:2")}})
        await finish(site)
        await site.patch(DEPLOYMENT, "web", {"spec": {"template": template(image="x:1")}})
        await finish(site)
        restored = await site.get(REPLICA_SET, first["metadata"]["name"])
        assert restored["metadata"]["annotations"][REVISION] == "3"
        history = restored["metadata"]["annotations"]["deployment.kubernetes.io/revision-history"]
        assert history == "1"
        assert restored["spec"]["replicas"] == 3

        async def told():
            web = await site.get(DEPLOYMENT, "web")
            return web["metadata"]["annotations"][REVISION] == "3"

        await site.until(told)

    stories(story)


def test_scaling_needs_no_new_revision(stories):
    async def story(site):
        await rolled_out(site)
        await site.patch(DEPLOYMENT, "web", {"spec": {"replicas": 5}})
        await site.ready(*await site.pods_are(5))
        await site.status(DEPLOYMENT, "web", availableReplicas=5, updatedReplicas=5)
        await site.patch(DEPLOYMENT, "web", {"spec": {"replicas": 0}})
        await site.pods_are(0)
        await site.status(DEPLOYMENT, "web", replicas=0, availableReplicas=0)
        assert len(await site.all(REPLICA_SET)) == 1

    stories(story)


def test_recreate_waits_for_the_last_pod_of_the_old(stories):
    async def story(site):
        await rolled_out(site, 2, strategy={"type": "Recreate", "rollingUpdate": None})
        await site.patch(DEPLOYMENT, "web", {"spec": {"template": template(image="x:2")}})
        await finish(site, 2)
        assert {p["spec"]["containers"][0]["image"] for p in await site.pods()} == {"x:2"}

    stories(story)


def test_a_paused_deployment_keeps_its_template_to_itself(stories):
    async def story(site):
        await rolled_out(site)
        await site.patch(DEPLOYMENT, "web", {"spec": {"paused": True}})
        paused = await site.condition(DEPLOYMENT, "web", "Progressing", "Unknown")
        assert paused["reason"] == "DeploymentPaused"
        await site.patch(DEPLOYMENT, "web", {"spec": {"template": template(image="x:2")}})
        await site.status(DEPLOYMENT, "web", observedGeneration=3)
        assert len(await site.all(REPLICA_SET)) == 1
        await site.patch(DEPLOYMENT, "web", {"spec": {"paused": False}})
        await finish(site)
        assert len(await site.all(REPLICA_SET)) == 2

    stories(story)


def test_only_so_much_history_is_kept(stories):
    async def story(site):
        await rolled_out(site, 1, revisionHistoryLimit=1)
        for image in ("x:2", "x:3", "x:4"):
            await site.patch(DEPLOYMENT, "web", {"spec": {"template": template(image=image)}})
            await finish(site, 1)

        async def two():
            return len(await site.all(REPLICA_SET)) == 2

        await site.until(two)
        revisions = sorted(
            s["metadata"]["annotations"][REVISION] for s in await site.all(REPLICA_SET)
        )
        assert revisions == ["3", "4"]

    stories(story)


def test_no_progress_within_the_deadline_is_said(stories):
    async def story(site):
        await site.create(DEPLOYMENT, "web", deployment(1, progressDeadlineSeconds=1))
        failed = await site.condition(DEPLOYMENT, "web", "Progressing", "False")
        assert failed["reason"] == "ProgressDeadlineExceeded"
        assert failed["message"].endswith("has timed out progressing.")

    stories(story)


def test_a_replica_set_of_nobody_is_adopted(stories):
    async def story(site):
        orphan = {
            "replicas": 1,
            "selector": {"matchLabels": {"app": "web"}},
            "template": template(image="old"),
        }
        await site.create(REPLICA_SET, "old", orphan, labels={"app": "web"})
        await site.pods_are(1)
        created = await site.create(DEPLOYMENT, "web", deployment(2))

        async def adopted():
            owners = (await site.get(REPLICA_SET, "old"))["metadata"].get("ownerReferences") or ()
            return any(o["uid"] == created["metadata"]["uid"] and o["controller"] for o in owners)

        await site.until(adopted)

    stories(story)


@pytest.mark.parametrize("size", [2, 4, 7])
def test_a_size_that_changes_during_a_rollout_is_shared(stories, size):
    async def story(site):
        strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}}
        await rolled_out(site, 4, strategy=strategy)
        await site.patch(DEPLOYMENT, "web", {"spec": {"template": template(image="x:2")}})

        async def both():
            sizes = sorted(s["spec"]["replicas"] for s in await site.all(REPLICA_SET))
            return sizes == [2, 3]

        await site.until(both)
        await site.patch(DEPLOYMENT, "web", {"spec": {"replicas": size}})

        async def shared():
            sets = await site.all(REPLICA_SET)
            desired = "deployment.kubernetes.io/desired-replicas"
            desired_sizes = {
                s["metadata"]["annotations"][desired] for s in sets if s["spec"]["replicas"]
            }
            return desired_sizes == {str(size)}

        await site.until(shared)
        await finish(site, size)

    stories(story)
