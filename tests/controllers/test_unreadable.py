"""An object of another version, which nobody here can read: it stops nothing, and ends nothing."""

import pytest

from bidplane.api.kinds import AGENT, BID, GPU_LEASE, NODE, POD
from bidplane.errors import NotFound
from bidplane.kube.client import Listing
from bidplane.kube.forwarding import ForwardingClient

from .conftest import AGENT_NAME


class OtherVersion(ForwardingClient):
    """A host whose objects of one kind have a field with another meaning."""

    def __init__(self, host, kind, **spec):
        super().__init__(lambda: host)
        self._kind, self._spec = kind, spec

    async def list(self, kind, namespace=None, *, labels="", fields=""):
        listing = await super().list(kind, namespace, labels=labels, fields=fields)
        if kind != self._kind:
            return listing
        items = [{**obj, "spec": {**obj["spec"], **self._spec}} for obj in listing.items]
        return Listing(items, listing.resource_version)


async def upgraded(site, kind, **spec):
    """The controllers start again, and find objects that they cannot read."""
    await site.pause()
    site.host, readable = OtherVersion(site.host, kind, **spec), site.host
    await site.resume()
    site.host = readable


def test_a_lease_that_cannot_be_read_keeps_its_pod_node_and_mirror(stories):
    async def story(site):
        await site.running()
        await upgraded(site, GPU_LEASE, devices={"some": "other form"})
        await site.settle(60)
        assert (await site.pod())["status"]["phase"] == "Running"
        assert await site.names(site.plane, NODE) == ["lease-1"]
        assert await site.names(site.plane, GPU_LEASE) == ["lease-1"]
        assert len(await site.all(site.host, POD)) == 1
        # Once it is written in a form that can be read, all goes on.
        await site.notice(30)
        assert (await site.pod())["metadata"].get("deletionTimestamp")

    stories(story)


def test_an_agent_that_cannot_be_read_keeps_what_it_has_and_can_be_deleted(stories):
    async def story(site):
        await site.running()
        await upgraded(site, AGENT, priority="high")
        assert (await site.pod())["status"]["phase"] == "Running"
        await site.host.delete(AGENT, AGENT_NAME)
        await site.settle()
        await site.remove_host_pod()
        await site.settle()
        await site.end_lease()
        await site.settle()
        with pytest.raises(NotFound):
            await site.host.get(AGENT, AGENT_NAME)

    stories(story)


def test_a_bid_that_cannot_be_read_reaches_the_exchange_which_says_what_is_wrong(stories):
    async def story(site):
        bid = {"metadata": {"name": "hand"}, "spec": {"gpus": 1, "maxPrice": "1.00"}}
        await site.plane.create(BID, bid, "default")
        await site.settle()
        await upgraded(site, BID, gpus="many")
        (copy,) = await site.all(site.host, BID)
        await site.bid_status(copy["metadata"]["name"], "Won")
        await site.settle()
        (bid,) = await site.all(site.plane, BID)
        assert bid["status"]["phase"] == "Won", "its status comes back"

    stories(story)
