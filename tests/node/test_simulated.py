"""A simulated node does what a kubelet does, by the clock, and remembers nothing itself."""

import asyncio

import pytest

from bidplane.api import labels
from bidplane.api.kinds import LEASE, NODE, POD, RESOURCE_CLAIM, RESOURCE_SLICE
from bidplane.api.times import parse_rfc3339, rfc3339
from bidplane.core.devices.mig import Slot
from bidplane.core.nodes import heartbeats
from bidplane.core.nodes.simulation import read
from bidplane.node.fleet import Fleet, NodeDeclaration
from bidplane.node.simulatedstatus import devices_of, restarts

SPACE = "agent-a"


def state(pod):
    return pod["status"]["containerStatuses"][0]["state"]


def test_it_registers_its_nodes_and_devices(stories):
    async def story(site):
        node = await site.client.get(NODE, "h100-a")
        assert labels.GPU_RESOURCE not in node["status"]["capacity"]
        slice_ = await site.client.get(RESOURCE_SLICE, "h100-a-gpus")
        assert len(slice_["spec"]["devices"]) == 8

    stories(story)


def test_registering_again_changes_nothing_unless_the_fleet_did(stories):
    async def story(site):
        await site.kill()
        site.start()
        await asyncio.sleep(1)
        slice_ = await site.client.get(RESOURCE_SLICE, "h100-a-gpus")
        assert slice_["spec"]["pool"]["generation"] == 1
        await site.kill()
        site.start(Fleet(nodes=[NodeDeclaration(name="h100-a", product="H100", gpus=4)]))
        await asyncio.sleep(1)
        slice_ = await site.client.get(RESOURCE_SLICE, "h100-a-gpus")
        assert (slice_["spec"]["pool"]["generation"], len(slice_["spec"]["devices"])) == (2, 4)

    stories(story)


def test_a_node_that_was_given_up_says_that_it_is_ready_again(stories):
    """On a cluster: the process stood still, and the node's heartbeat with it."""

    async def story(site):
        nodes = site.nodes

        async def beats(seconds):
            task = asyncio.create_task(nodes.beat())
            await asyncio.sleep(seconds)
            task.cancel()

        async def ready():
            node = await site.client.get(NODE, "h100-a")
            return next(c["status"] for c in node["status"]["conditions"] if c["type"] == "Ready")

        async def given_up():
            node = await site.client.get(NODE, "h100-a")
            lease = await site.client.get(LEASE, "h100-a", "kube-node-lease")
            now = site.clock.now()
            conditions = heartbeats.judge(node, lease, now=now, stamp=rfc3339(now)).conditions
            said = {"status": {"conditions": conditions}}
            await site.client.patch(NODE, "h100-a", said, subresource="status")

        await beats(25)
        await asyncio.sleep(60)
        await given_up()
        assert await ready() == "Unknown"
        await beats(5)
        assert await ready() == "True"

    stories(story)


def test_a_pod_starts_runs_and_ends_on_time(stories):
    async def story(site):
        await site.create(seconds="60")
        await asyncio.sleep(1)
        assert await site.phase() == "Running"
        await asyncio.sleep(58)
        assert await site.phase() == "Running"
        await asyncio.sleep(2)
        assert await site.phase() == "Succeeded"
        assert await site.events() == ["Started"]

    stories(story)


def test_a_pod_that_says_nothing_of_time_runs_until_it_is_deleted(stories):
    async def story(site):
        await site.create()
        await asyncio.sleep(1e6)
        assert await site.phase() == "Running"

    stories(story)


def test_a_pod_of_another_node_is_left_alone(stories):
    async def story(site):
        await site.create(node="elsewhere")
        await asyncio.sleep(10)
        assert await site.phase() == "Pending"

    stories(story)


@pytest.mark.parametrize(
    ("policy", "code", "phase"),
    [
        ("Never", "0", "Succeeded"),
        ("Never", "3", "Failed"),
        ("OnFailure", "0", "Succeeded"),
        ("OnFailure", "3", "Running"),
        ("Always", "0", "Running"),
    ],
)
def test_the_restart_policy(stories, policy, code, phase):
    async def story(site):
        await site.create(policy=policy, seconds="10", exit_code=code)
        await asyncio.sleep(35.5)
        assert await site.phase() == phase
        pod = await site.pod()
        if phase == "Running":
            assert restarts(pod) == 3
        else:
            assert state(pod)["terminated"]["exitCode"] == int(code)

    stories(story)


@pytest.mark.parametrize("seconds", ["0", "0.001"])
def test_a_pod_that_ends_at_once_does_not_keep_the_node_busy(stories, seconds):
    async def story(site):
        await site.create(policy="Always", seconds=seconds)
        await asyncio.sleep(10.5)
        assert restarts(await site.pod()) <= 11

    stories(story)


@pytest.mark.parametrize("text", ["nan", "inf", "-1", "soon"])
def test_an_annotation_that_cannot_be_read_is_refused_by_name(stories, text):
    async def story(site):
        await site.create("odd", seconds="5", exit_code=text)
        await site.create("even", seconds="5")
        await asyncio.sleep(10)
        status = (await site.pod("odd"))["status"]
        assert (status["phase"], status["reason"]) == ("Failed", "BadAnnotation")
        assert (
            f"bidplane.dev/simulated-exit-code: {text!r} is not a whole number"
            in (status["message"])
        )
        assert "BadAnnotation" in await site.events()
        assert await site.phase("even") == "Succeeded", "nobody else is upset"
        await site.client.delete(POD, "odd", SPACE)
        await asyncio.sleep(2)
        assert await site.phase("odd") == "gone"

    stories(story)


def test_an_annotation_broken_while_it_runs_ends_nothing(stories):
    async def story(site):
        await site.create(seconds="60")
        await asyncio.sleep(1)
        broken = {"metadata": {"annotations": {labels.SIMULATED_SECONDS: "long"}}}
        await site.client.patch(POD, "train", broken, SPACE)
        await asyncio.sleep(100)
        assert await site.phase() == "Running"
        assert "BadAnnotation" in await site.events()
        await site.client.delete(POD, "train", SPACE)
        await asyncio.sleep(2)
        assert await site.phase() == "gone"

    stories(story)


def test_start_and_load_take_their_time(stories):
    async def story(site):
        await site.create(start_seconds="20", load_seconds="30", seconds="40")
        await asyncio.sleep(10)
        pod = await site.pod()
        assert pod["status"]["phase"] == "Pending"
        assert state(pod)["waiting"]["reason"] == "ContainerCreating"
        await asyncio.sleep(15)
        pod = await site.pod()
        assert pod["status"]["phase"] == "Running"
        assert not pod["status"]["containerStatuses"][0]["ready"], "it loads"
        # Killed and started again in the middle of it: nothing is lost, nothing begins anew.
        await site.kill()
        site.start()
        await asyncio.sleep(30)
        assert (await site.pod())["status"]["containerStatuses"][0]["ready"]
        await asyncio.sleep(25)
        assert await site.phase() == "Running"
        await asyncio.sleep(15)
        pod = await site.pod()
        assert pod["status"]["phase"] == "Succeeded"
        over = state(pod)["terminated"]
        took = parse_rfc3339(over["finishedAt"]) - parse_rfc3339(over["startedAt"])
        assert took == 70

    stories(story)


def test_failures_come_as_often_as_it_says_and_the_same_ones_again(stories):
    async def story(site):
        for at in range(40):
            await site.create(f"p-{at}", seconds="3600", failures_per_hour="1")
        await asyncio.sleep(3700)
        failed = {f"p-{at}" for at in range(40) if await site.phase(f"p-{at}") == "Failed"}
        # One in e is spared: 25 of 40 fail, give or take three standard deviations.
        assert 16 <= len(failed) <= 34
        assert failed == {
            f"p-{at}"
            for at in range(40)
            if read(
                {
                    "metadata": {
                        "namespace": SPACE,
                        "name": f"p-{at}",
                        "annotations": {
                            labels.SIMULATED_SECONDS: "3600",
                            labels.SIMULATED_FAILURES: "1",
                        },
                    }
                },
                seed="0",
            )
            .run(0)
            .code
        }

    stories(story)


MIG = Fleet(nodes=[NodeDeclaration(name="h100-a", product="H100", memory="80Gi", gpus=2, mig=True)])


async def cut(site):
    await site.kill()
    site.start(MIG)
    await asyncio.sleep(1)


def instances(site):
    return site.nodes.life.partitions("h100-a")._instances.current("GPU-h100-a-0")


def test_an_instance_is_made_for_a_pod_and_goes_with_it(stories):
    async def story(site):
        await cut(site)
        await site.claim("small", "gpu-0-mig-1g10gb-2")
        await site.create(claim="small")
        await asyncio.sleep(1)
        assert instances(site) == [Slot("1g.10gb", 2)]
        claim = await site.client.get(RESOURCE_CLAIM, "small", SPACE)
        (told,) = claim["status"]["devices"]
        assert told["data"]["uuid"].startswith("MIG-")
        assert told["conditions"][0]["status"] == "True"
        await cut(site)  # a new process, which has made nothing yet
        assert instances(site) == [Slot("1g.10gb", 2)]
        await site.client.delete(POD, "train", SPACE)
        await asyncio.sleep(5)
        assert instances(site) == []

    stories(story)


@pytest.mark.parametrize("forgotten", [False, True])
def test_an_instance_goes_when_its_pod_ends_or_is_forgotten(stories, forgotten):
    async def story(site):
        await cut(site)
        await site.claim("small", "gpu-0-mig-1g10gb-2")
        await site.create(claim="small", **({} if forgotten else {"seconds": "20"}))
        await asyncio.sleep(1)
        assert instances(site) == [Slot("1g.10gb", 2)]
        if forgotten:
            await site.client.delete(POD, "train", SPACE, grace_seconds=0)
        await asyncio.sleep(25)
        assert instances(site) == []

    stories(story)


def test_an_instance_that_cannot_be_made_keeps_its_pod_waiting(stories):
    async def story(site):
        await cut(site)
        cards = site.nodes.life.partitions("h100-a")._instances
        cards.create("GPU-h100-a-0", Slot("3g.40gb", 0))
        await site.claim("small", "gpu-0-mig-1g10gb-2")
        await site.create(claim="small")
        await asyncio.sleep(5)
        pod = await site.pod()
        assert pod["status"]["phase"] == "Pending"
        assert "share memory slice 2" in state(pod)["waiting"]["message"]
        assert "FailedPrepareDynamicResources" in await site.events()
        claim = await site.client.get(RESOURCE_CLAIM, "small", SPACE)
        assert claim["status"]["devices"][0]["conditions"][0]["status"] == "False"
        cards.destroy("GPU-h100-a-0", Slot("3g.40gb", 0))
        await asyncio.sleep(20)
        assert await site.phase() == "Running"

    stories(story)


@pytest.mark.parametrize(
    ("shutdown", "grace", "gone_after"),
    [(None, 30, 1), ("10", 30, 10), ("100", 30, 30), ("0", 30, 0), (None, None, 1)],
)
def test_a_deleted_pod_stops_within_its_grace(stories, shutdown, grace, gone_after):
    async def story(site):
        notes = {} if shutdown is None else {"shutdown_seconds": shutdown}
        await site.create(**notes)
        await asyncio.sleep(5)
        await site.client.delete(POD, "train", SPACE, grace_seconds=grace)
        if gone_after:
            await asyncio.sleep(gone_after - 0.5)
            assert await site.phase() == "Running"
        await asyncio.sleep(1.6)
        assert await site.phase() == "gone"

    stories(story)


def test_grace_that_is_shortened_is_short(stories):
    async def story(site):
        await site.create(shutdown_seconds="1000")
        await asyncio.sleep(5)
        await site.client.delete(POD, "train", SPACE, grace_seconds=600)
        await asyncio.sleep(5)
        await site.client.delete(POD, "train", SPACE, grace_seconds=10)
        await asyncio.sleep(12)
        assert await site.phase() == "gone"

    stories(story)


def test_a_pod_that_never_started_or_has_ended_is_gone_at_once(stories):
    async def story(site):
        await site.create("waits", claim="missing")
        await site.create("over", seconds="1")
        await asyncio.sleep(5)
        assert (await site.phase("waits"), await site.phase("over")) == ("Pending", "Succeeded")
        await site.client.delete(POD, "waits", SPACE)
        await site.client.delete(POD, "over", SPACE)
        await asyncio.sleep(0.1)
        assert (await site.phase("waits"), await site.phase("over")) == ("gone", "gone")

    stories(story)


def test_a_pod_waits_for_its_claim_and_says_what_it_runs_on(stories):
    async def story(site):
        await site.create(claim="lease-1")
        await asyncio.sleep(3)
        assert await site.phase() == "Pending"
        await site.claim("lease-1", "gpu-2", "gpu-3")
        await asyncio.sleep(11)
        pod = await site.pod()
        assert pod["status"]["phase"] == "Running"
        assert devices_of(pod) == ["h100-a/gpu-2", "h100-a/gpu-3"]

    stories(story)


def test_what_it_ran_on_is_known_when_the_claim_is_gone(stories):
    """A claim goes with its lease, and a lease goes soon after its pod has ended."""

    async def story(site):
        await site.claim("lease-1", "gpu-2")
        await site.create(claim="lease-1", seconds="5", policy="OnFailure", exit_code="1")
        await asyncio.sleep(1)
        await site.client.delete(RESOURCE_CLAIM, "lease-1", SPACE)
        await asyncio.sleep(10)
        pod = await site.pod()
        assert restarts(pod) == 2
        assert devices_of(pod) == ["h100-a/gpu-2"]

    stories(story)


def test_after_a_restart_it_goes_on_from_what_the_api_says(stories):
    async def story(site):
        await site.create("short", seconds="60")
        await site.create("long", seconds="600")
        await site.create("leaving", shutdown_seconds="20")
        await asyncio.sleep(10)
        await site.client.delete(POD, "leaving", SPACE, grace_seconds=30)
        await site.kill()
        await asyncio.sleep(300)
        site.start()
        await asyncio.sleep(1)
        assert await site.phase("leaving") == "gone"
        assert await site.phase("long") == "Running"
        over = await site.pod("short")
        assert over["status"]["phase"] == "Succeeded"
        ran = state(over)["terminated"]
        took = parse_rfc3339(ran["finishedAt"]) - parse_rfc3339(ran["startedAt"])
        assert took == 60, "it ended when its time was over, not when that was noticed"
        await asyncio.sleep(290)
        assert await site.phase("long") == "Succeeded"

    stories(story)


def test_a_pod_that_takes_the_name_of_another_is_not_ended_for_it(stories):
    async def story(site):
        await site.create(seconds="10")
        await asyncio.sleep(5)
        await site.client.delete(POD, "train", SPACE, grace_seconds=0)
        await site.create(seconds="10")
        await asyncio.sleep(6)
        assert await site.phase() == "Running"

    stories(story)
