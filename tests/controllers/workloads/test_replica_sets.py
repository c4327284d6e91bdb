"""A ReplicaSet has as many pods as it says, and says how they are."""

from bidplane.api.kinds import POD, REPLICA_SET

from .conftest import template


def spec(replicas=2, **more):
    return {
        "replicas": replicas,
        "selector": {"matchLabels": {"app": "web"}},
        "template": template(),
        **more,
    }


def test_a_pod_that_goes_is_replaced(stories):
    async def story(site):
        await site.create(REPLICA_SET, "web", spec())
        first, second = await site.pods_are(2)
        await site.status(REPLICA_SET, "web", replicas=2, fullyLabeledReplicas=2)
        await site.delete(POD, first["metadata"]["name"], grace_seconds=0)

        async def another():
            names = {p["metadata"]["name"] for p in await site.pods()}
            return len(names) == 2 and first["metadata"]["name"] not in names

        await site.until(another)
        assert await site.get(POD, second["metadata"]["name"])

    stories(story)


def test_a_pod_that_ended_is_replaced_and_kept(stories):
    async def story(site):
        await site.create(REPLICA_SET, "web", spec(1))
        (pod,) = await site.pods_are(1)
        await site.ends(pod, code=1)
        await site.pods_are(2)
        await site.status(REPLICA_SET, "web", replicas=1)

    stories(story)


def test_the_least_useful_go_first(stories):
    async def story(site):
        await site.create(REPLICA_SET, "web", spec(3))
        pods = await site.pods_are(3)
        await site.ready(pods[1])
        await site.patch(REPLICA_SET, "web", {"spec": {"replicas": 1}})
        (remaining,) = await site.pods_are(1)
        assert remaining["metadata"]["name"] == pods[1]["metadata"]["name"]

    stories(story)


def test_the_cheapest_to_delete_go_first(stories):
    async def story(site):
        await site.create(REPLICA_SET, "web", spec(3))
        pods = await site.pods_are(3)
        cost = "controller.kubernetes.io/pod-deletion-cost"
        for pod, price in zip(pods, ("5", "-3", "2"), strict=True):
            change = {"metadata": {"annotations": {cost: price}}}
            await site.patch(POD, pod["metadata"]["name"], change)
        await site.steady(0.3)
        await site.patch(REPLICA_SET, "web", {"spec": {"replicas": 1}})
        (remaining,) = await site.pods_are(1)
        assert remaining["metadata"]["name"] == pods[0]["metadata"]["name"]

    stories(story)


def test_a_pod_of_nobody_is_adopted_and_one_too_many_goes(stories):
    async def story(site):
        pod = {"containers": [{"name": "main", "image": "x"}]}
        await site.create(POD, "stray", pod, labels={"app": "web"})
        created = await site.create(REPLICA_SET, "web", spec(1))

        async def adopted():
            owners = (await site.get(POD, "stray"))["metadata"].get("ownerReferences") or ()
            return [o["uid"] for o in owners] == [created["metadata"]["uid"]]

        await site.until(adopted)
        assert [p["metadata"]["name"] for p in await site.pods()] == ["stray"]

    stories(story)


def test_a_pod_whose_label_is_taken_off_is_let_go(stories):
    async def story(site):
        await site.create(REPLICA_SET, "web", spec(1))
        (pod,) = await site.pods_are(1)
        name = pod["metadata"]["name"]
        await site.patch(POD, name, {"metadata": {"labels": {"app": "debug"}}})

        async def let_go():
            return not (await site.get(POD, name))["metadata"].get("ownerReferences")

        await site.until(let_go)
        await site.pods_are(1, "app=web")

    stories(story)


def test_ready_is_not_yet_available(stories):
    async def story(site):
        await site.create(REPLICA_SET, "web", spec(1, minReadySeconds=2))
        await site.ready(*await site.pods_are(1))
        await site.status(REPLICA_SET, "web", readyReplicas=1, availableReplicas=None)
        await site.status(REPLICA_SET, "web", readyReplicas=1, availableReplicas=1)

    stories(story)


def test_a_deleted_set_takes_its_pods(stories):
    async def story(site):
        await site.create(REPLICA_SET, "web", spec(2))
        await site.pods_are(2)
        await site.delete(REPLICA_SET, "web")
        await site.pods_are(0)

    stories(story)
