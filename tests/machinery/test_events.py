"""Events: said once and counted, valid whatever they are about, never in the way."""

import asyncio

import pytest

from bidplane.api.kinds import EVENT
from bidplane.errors import AlreadyExists, NotFound, Unavailable
from bidplane.machinery.events import Recorder
from bidplane.sim.loop import VirtualClock, run
from bidplane.wire.names import subdomain_problems

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "train", "namespace": "team", "uid": "u1"},
}


class Kept:
    """A client that only keeps Events, in a dictionary."""

    def __init__(self):
        self.events = {}

    async def create(self, kind, obj, namespace=None):
        assert kind == EVENT
        key = namespace, obj["metadata"]["name"]
        if key in self.events:
            raise AlreadyExists("there")
        self.events[key] = obj

    async def get(self, kind, name, namespace=None):
        if (namespace, name) not in self.events:
            raise NotFound("gone")
        return self.events[namespace, name]

    async def patch(self, kind, name, patch, namespace=None, *, subresource=""):
        self.events[namespace, name] = {**self.events[namespace, name], **patch}


def recorded(*messages, about=POD, client=None):
    client = client or Kept()
    recorder = Recorder("tester", clock=VirtualClock())

    async def story():
        for reason, message in messages:
            await recorder.record(client, about, reason, message)
            await asyncio.sleep(60)

    run(story())
    return list(client.events.values())


def test_an_event_says_what_happened_to_what():
    (event,) = recorded(("Started", "it runs"))
    assert event["involvedObject"]["uid"] == "u1"
    assert event["metadata"]["namespace"] == "team"
    assert (event["reason"], event["message"], event["count"]) == ("Started", "it runs", 1)


def test_the_same_again_raises_the_count_and_the_time():
    (event,) = recorded(*[("Started", "it runs")] * 3)
    assert event["count"] == 3
    assert event["lastTimestamp"] > event["firstTimestamp"]


def test_another_message_and_another_life_of_the_pod_are_other_events():
    client = Kept()
    recorded(("Started", "it runs"), ("Started", "again"), client=client)
    other = {**POD, "metadata": {**POD["metadata"], "uid": "u2"}}
    assert len(recorded(("Started", "it runs"), about=other, client=client)) == 3


def test_a_cluster_scoped_object_has_its_events_in_default():
    node = {"kind": "Node", "metadata": {"name": "lease-1", "uid": "n1"}}
    (event,) = recorded(("ReclaimNotice", "soon"), about=node)
    assert event["metadata"]["namespace"] == "default"
    assert event["involvedObject"]["namespace"] == ""


@pytest.mark.parametrize("name", ["a", "n" * 253, "n" * 199 + ".n", "n" * 199 + "-n"])
def test_the_name_of_an_event_is_valid_however_long_the_object_is_called(name):
    about = {**POD, "metadata": {**POD["metadata"], "name": name}}
    (event,) = recorded(("Started", "it runs"), about=about)
    assert not subdomain_problems(event["metadata"]["name"])


def test_an_event_that_cannot_be_written_is_dropped():
    class Down(Kept):
        async def create(self, kind, obj, namespace=None):
            raise Unavailable("down")

    assert recorded(("Started", "it runs"), client=Down()) == []
