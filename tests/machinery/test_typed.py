"""A typed cache has what can be read of its informer, and logs the rest."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import structlog

from bidplane.api.kinds import BID
from bidplane.api.reading import Bid, read_bid
from bidplane.kube.client import EventType
from bidplane.machinery.informer import Informer
from bidplane.machinery.typed import TypedCache
from bidplane.sim.loop import VirtualClock
from machinery.scripted import ScriptedServer


class Story:
    """A cache of bids, told of changes by hand."""

    def __init__(self) -> None:
        self.informer = Informer(ScriptedServer(), BID, clock=VirtualClock())
        self.bids: TypedCache[Bid] = TypedCache(self.informer, read_bid)
        self.by_pool = self.bids.index(lambda bid: bid.spec.pool)
        self.told: list[tuple[str, str]] = []
        self.bids.on_change(lambda event, bid: self.told.append((event, bid.name)))
        self.revision = 0

    def change(self, name: str, *, gone: bool = False, **spec: Any) -> None:
        self.revision += 1
        metadata = {
            "namespace": "n",
            "name": name,
            "uid": name,
            "resourceVersion": str(self.revision),
        }
        event: EventType = "DELETED" if gone else "MODIFIED"
        self.informer._apply(event, {"metadata": metadata, "spec": spec})


@pytest.fixture
def story() -> Story:
    async def made() -> Story:
        return Story()

    return asyncio.run(made())


def test_objects_are_read_once_for_each_version(story: Story) -> None:
    story.change("a", gpus=1)
    first = story.bids.get("n", "a")
    assert first is story.bids.get("n", "a")
    story.change("a", gpus=2)
    assert [bid.spec.gpus for bid in story.bids.items()] == [2]
    story.change("a", gone=True, gpus=2)
    assert story.bids.items() == []
    assert story.told == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]


def test_what_cannot_be_read_is_logged_and_left_out(story: Story) -> None:
    with structlog.testing.capture_logs() as logs:
        story.change("a", gpus="many")
    assert [(entry["event"], entry["log_level"]) for entry in logs] == [("cannot read", "warning")]
    assert "spec.gpus" in logs[0]["problem"]
    assert story.bids.items() == []
    assert story.bids.get("n", "a") is None
    assert story.bids.is_invalid("n", "a"), "it exists: whoever acts on absence can tell"
    assert not story.bids.is_invalid("n", "b")
    assert story.told == []
    assert repr(story.bids) == "<TypedCache bids.bidplane.dev 0 objects, 1 invalid>"


def test_an_object_that_becomes_unreadable_leaves_caches_and_indexes(story: Story) -> None:
    story.change("a", gpus=1, pool="h100")
    assert [bid.name for bid in story.by_pool["h100"]] == ["a"]
    story.change("a", gpus="many", pool="h100")
    assert story.bids.items() == []
    assert story.by_pool["h100"] == []
    story.change("a", gpus=1, pool="h100")
    assert not story.bids.invalid()
    assert [bid.name for bid in story.by_pool["h100"]] == ["a"]


def test_the_end_of_an_object_that_was_never_readable_is_not_told(story: Story) -> None:
    story.change("a", gpus="many")
    story.change("a", gone=True, gpus="many")
    assert story.bids.invalid() == []
    assert story.told == []
