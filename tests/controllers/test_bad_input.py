"""What cannot be is refused when it is sent, by field; nothing is half done."""

import copy

import pytest

from bidplane.api import labels
from bidplane.api.kinds import AGENT, BID, JOB, POD, RESOURCE_CLAIM
from bidplane.core.bidding.admission import admission
from bidplane.errors import ApiError

from .conftest import AGENT_NAME

TRUSTED = {"metadata": {"name": AGENT_NAME}, "spec": {"owner": "ann", "trusted": True}}
UNTRUSTED = {"metadata": {"name": AGENT_NAME}, "spec": {"owner": "ann"}}


def untrusted(plane):
    return UNTRUSTED if plane == AGENT_NAME else None


async def refused(client, kind, obj, namespace=None):
    with pytest.raises(ApiError) as error:
        await client.create(kind, obj, namespace)
    assert error.value.code in (400, 422), error.value
    return str(error.value)


@pytest.mark.parametrize(
    ("name", "spec", "words"),
    [
        ("Trainer", {}, "Trainer"),
        ("host", {}, "reserved"),
        ("a" * 41, {}, "1 to 40"),
        ("ok", {"refill": "-1"}, "spec.refill"),
        ("ok", {"refill": "lots"}, "spec.refill"),
        ("ok", {"carryOver": "-5"}, "spec.carryOver"),
        ("ok", {"maxPrice": "-0.10"}, "spec.maxPrice"),
        ("ok", {"priority": 0}, "spec.priority"),
        ("ok", {"driver": "vmware"}, "spec.driver"),
        ("ok", {"strategy": "lucky"}, "spec.strategy"),
    ],
)
def test_an_agent_that_cannot_be(stories, name, spec, words):
    async def story(site):
        agent = {"metadata": {"name": name}, "spec": {"owner": "ann", **spec}}
        assert words in await refused(site.host, AGENT, agent)
        assert await site.names(site.host, AGENT) == [AGENT_NAME]

    stories(story)


def pod(annotations=None, limits=None, **spec):
    limits = {labels.GPU_RESOURCE: "1"} if limits is None else limits
    container = {"name": "main", "image": "x", "resources": {"limits": limits}}
    return {
        "metadata": {"name": "bad", "annotations": annotations or {}},
        "spec": {"containers": [container], **spec},
    }


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (pod({"gpu-fraction": "0.5"}), "more than one way"),
        (
            pod(limits={labels.GPU_RESOURCE: "1", "nvidia.com/mig-1g.10gb": "1"}),
            "more than one way",
        ),
        (pod({"gpu-fraction": "0.5", "gpu-memory": "1000"}, limits={}), "more than one way"),
        (pod({"gpu-fraction": "most"}, limits={}), "gpu-fraction"),
        (pod({labels.MAX_PRICE: "cheap"}), labels.MAX_PRICE),
        (pod({labels.MAX_PRICE: "-1"}), labels.MAX_PRICE),
        (pod({labels.DEADLINE: "tomorrow"}), labels.DEADLINE),
        (pod({labels.URGENCY: "very"}), labels.URGENCY),
        (pod({labels.TERM: "long"}), labels.TERM),
        (pod({labels.PREEMPTIBLE: "no"}), labels.PREEMPTIBLE),
        (pod({labels.CHECKPOINT_COMMAND: "save 'it"}), labels.CHECKPOINT_COMMAND),
        (pod({labels.GANG: "g"}), labels.GANG_SIZE),
        (pod({labels.GANG_SIZE: "2"}), labels.GANG),
        (pod(hostNetwork=True), "spec.hostNetwork"),
        (pod(volumes=[{"name": "v", "hostPath": {"path": "/"}}]), "spec.volumes[0].hostPath"),
    ],
)
def test_a_pod_that_cannot_be(stories, bad, words):
    async def story(site):
        # A copy: what a plane takes, it keeps.
        assert words in await refused(site.plane, POD, copy.deepcopy(bad), "default")
        assert await site.names(site.plane, POD) == []
        assert await site.names(site.plane, BID) == []

    stories(story, admit=admission(untrusted))


def test_a_privileged_container_is_refused_whoever_makes_its_pod(stories):
    async def story(site):
        bad = pod()
        bad["spec"]["containers"][0]["securityContext"] = {"privileged": True}
        message = await refused(site.plane, POD, copy.deepcopy(bad), "default")
        assert "spec.containers[0].securityContext.privileged" in message
        assert "spec.trusted" in message
        template = {"spec": {**bad["spec"], "restartPolicy": "Never"}}
        job = {"metadata": {"name": "sly"}, "spec": {"template": template}}
        await site.plane.create(JOB, job, "default")
        await site.settle(3)
        assert await site.names(site.plane, POD) == []

    stories(story, admit=admission(untrusted))


def test_a_trusted_agent_may(stories):
    async def story(site):
        await site.plane.create(POD, pod(hostNetwork=True), "default")
        assert await site.names(site.plane, POD) == ["bad"]

    stories(story, admit=admission(lambda plane: TRUSTED))


def test_a_claim_of_another_agent_is_no_claim(stories):
    """B's claim has the name that A's pod says: to A there is none, and it is told so."""

    async def story(site):
        await site.agent("other")
        exactly = {"deviceClassName": labels.DEVICE_CLASS, "count": 1}
        request = {"name": "gpus", "exactly": exactly}
        claim = {"metadata": {"name": "theirs"}, "spec": {"devices": {"requests": [request]}}}
        other = site.planes.client("other")
        await other.create(RESOURCE_CLAIM, claim, "default")
        asks = pod(limits={}, resourceClaims=[{"name": "g", "resourceClaimName": "theirs"}])
        await site.plane.create(POD, asks, "default")
        await site.settle(3)
        bad_pod = await site.pod("bad")
        (condition,) = [c for c in bad_pod["status"]["conditions"] if c["type"] == "PodScheduled"]
        assert (condition["reason"], condition["status"]) == ("ClaimNotFound", "False")
        assert 'resourceclaim "theirs" not found: create it' in condition["message"]
        assert "other" not in condition["message"]
        (theirs,) = await site.all(other, RESOURCE_CLAIM)
        assert not (theirs.get("status") or {}).get("reservedFor")

    stories(story)
