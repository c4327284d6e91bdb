"""An Agent begins with a plane and ends with nothing left, in that order."""

import pytest

from bidplane.api import labels
from bidplane.api.kinds import AGENT, BID, CONFIG_MAP, GPU_LEASE, NAMESPACE, POD
from bidplane.errors import NotFound

SPACE = "agent-trainer"


async def gone(site):
    with pytest.raises(NotFound):
        await site.host.get(AGENT, "trainer")
    with pytest.raises(NotFound):
        await site.host.get(NAMESPACE, SPACE)
    assert site.planes.uid("trainer") is None


def test_an_agent_has_a_plane_and_a_namespace(stories):
    async def story(site):
        agent = await site.host.get(AGENT, "trainer")
        assert agent["status"]["phase"] == "Ready"
        assert agent["status"]["plane"] == "https://test/planes/trainer"
        assert labels.PLANE_FINALIZER in agent["metadata"]["finalizers"]
        namespace = await site.host.get(NAMESPACE, SPACE)
        assert namespace["metadata"]["labels"][labels.AGENT] == "trainer"

    stories(story)


def test_an_idle_agent_is_gone_at_once(stories):
    async def story(site):
        await site.host.delete(AGENT, "trainer")
        await site.settle(2)
        await gone(site)

    stories(story)


def test_devices_come_back_after_the_pods_and_money_after_the_devices(stories):
    async def story(site):
        await site.host.patch(
            AGENT,
            "trainer",
            {"metadata": {"finalizers": [labels.PLANE_FINALIZER, labels.WALLET_FINALIZER]}},
        )
        await site.running()
        await site.host.delete(AGENT, "trainer")
        await site.settle()
        assert site.planes.uid("trainer") is None, "its credentials are dead first"
        assert await site.names(site.host, BID) == []
        assert not (await site.lease())["metadata"].get("deletionTimestamp"), "a pod still runs"
        await site.remove_host_pod()
        await site.settle()
        assert (await site.lease())["metadata"].get("deletionTimestamp")
        await site.end_lease()
        await site.settle()
        agent = await site.host.get(AGENT, "trainer")
        assert agent["status"]["phase"] == "Deleting"
        await site.host.patch(
            AGENT, "trainer", {"metadata": {"finalizers": [labels.PLANE_FINALIZER]}}
        )
        await site.settle(2)
        await gone(site)

    stories(story)


def test_an_agent_of_the_same_name_begins_anew(stories):
    async def story(site):
        before = site.planes.uid("trainer")
        await site.create_pod()
        await site.host.delete(AGENT, "trainer")
        await site.settle(3)
        await site.agent()
        assert site.planes.uid("trainer") != before
        assert await site.names(site.plane, POD) == []
        await site.create_pod()
        assert len(await site.all(site.host, BID)) == 1

    stories(story)


def test_a_namespace_that_is_still_ending_is_waited_for(stories):
    """Else an Agent that takes the name at once finds its namespace vanish."""

    async def story(site):
        slow = {"metadata": {"name": "slow", "finalizers": ["example.com/slow"]}}
        await site.host.create(CONFIG_MAP, slow, SPACE)
        await site.host.delete(AGENT, "trainer")
        await site.settle(5)
        await site.host.get(AGENT, "trainer")
        await site.host.patch(CONFIG_MAP, "slow", {"metadata": {"finalizers": []}}, SPACE)
        await site.settle(5)
        await gone(site)

    stories(story)


def test_an_end_that_was_interrupted_goes_on(stories):
    async def story(site):
        await site.running()
        await site.host.delete(AGENT, "trainer")
        await site.pause()
        await site.resume()
        await site.remove_host_pod()
        await site.settle()
        await site.end_lease()
        await site.settle(2)
        await gone(site)
        assert await site.names(site.host, GPU_LEASE) == []

    stories(story)
