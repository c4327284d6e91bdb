"""
The exchange and its host: what is decided is told, whatever dies in between.

The story is played again and again, with the process killed at each of its writes to
the host, before it and after it. However it went, it must end the same.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bidplane.api import labels
from bidplane.api.kinds import AGENT, BID, GPU_LEASE
from bidplane.api.lease import FINALIZER
from bidplane.exchange.projector import lease_object, lease_status

from .stage import Stage, crash_at_every_write, outcome, play, settle


async def trainer_and_chat(stage: Stage) -> None:
    """One agent runs, another displaces it, both end: every kind of write there is."""
    await stage.second()
    stage.bid("trainer", "train", 4, "2.00")
    await stage.second()
    assert stage.status("trainer", "train")["phase"] == "Won"
    stage.claim("trainer", "train")
    await stage.second()
    assert stage.lease("trainer", "train")["status"]["phase"] == "Active"
    stage.bid("chat", "answer", 2, "9.00")
    await stage.second(60)
    assert stage.lease("trainer", "train")["status"]["phase"] == "Draining"
    assert stage.lease("trainer", "train")["status"]["reason"] == "Outbid"
    assert stage.lease("chat", "answer")["status"]["ready"] is False
    stage.give_back("trainer", "train")
    await stage.second(5)
    assert stage.lease("chat", "answer")["status"]["ready"] is True
    assert stage.status("trainer", "train")["phase"] == "Ended"
    stage.claim("chat", "answer")
    await stage.second()
    stage.give_back("chat", "answer")
    await stage.second(20)
    assert stage.host.of(GPU_LEASE) == []
    for name in ("trainer", "chat"):
        stage.host.mark_deleted(AGENT, name)
    await stage.second()
    await stage.second()
    assert stage.host.of(AGENT) == []


def test_the_story_without_a_crash(tmp_path: Path) -> None:
    stage = play(tmp_path, trainer_and_chat)
    assert {name: posted for name, posted, _ in outcome(stage) if name.startswith("wallet")} == {
        "wallet/uid-agents-trainer": 0,
        "wallet/uid-agents-chat": 0,
    }


def test_a_crash_at_any_write_changes_nothing(tmp_path: Path) -> None:
    crash_at_every_write(tmp_path, trainer_and_chat, writes=20)


def test_a_host_that_is_away_is_told_when_it_is_back(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.second()
        stage.bid("trainer", "train", 1, "2.00")
        await settle()
        stage.host.down = True
        stage.clock.time += 1
        stage.exchange.run_round()
        assert await stage.exchange.project() > 0
        assert stage.ledger.live_leases()  # decided, though nobody could be told
        assert stage.host.of(GPU_LEASE) == []
        stage.host.down = False
        await stage.second()
        assert stage.status("trainer", "train")["phase"] == "Won"

    play(tmp_path, story)


def test_the_exchange_shows_each_round_by_itself(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        stage.bid("trainer", "train", 1, "2.00")
        running = asyncio.create_task(stage.make_exchange().run())
        for _ in range(20):
            await settle()
        assert stage.status("trainer", "train")["phase"] == "Won"
        assert stage.lease("trainer", "train")["status"]["phase"] == "Pending"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    play(tmp_path, story)


def test_what_is_told_once_is_not_told_again(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.second()
        stage.bid("trainer", "train", 4, "2.00")
        stage.bid("chat", "answer", 4, "1.00")
        await stage.second()
        stage.claim("trainer", "train")
        for _ in range(30):
            await stage.second()
        writes = stage.host.writes
        for _ in range(10):
            await stage.second()
        assert stage.host.writes == writes

    play(tmp_path, story)


def test_a_late_cache_does_no_harm(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.second()
        stage.bid("trainer", "train", 4, "2.00")
        await settle()
        stage.clock.time += 1
        stage.exchange.run_round()
        # On the host, and not yet in the cache: written by one that died just before.
        made = lease_object(stage.ledger.live_leases()[0])
        made["metadata"].update(uid="there", resourceVersion="1")
        key = ("gpuleases", "agent-trainer", made["metadata"]["name"])
        stage.host.objects[key] = dict(made)
        assert await stage.exchange.project() == 0
        assert stage.lease("trainer", "train")["status"]["phase"] == "Pending"

    play(tmp_path, story)


def test_what_somebody_else_wrote_over_is_put_right(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.second()
        stage.bid("trainer", "train", 4, "2.00")
        await stage.second()
        name = stage.lease("trainer", "train")["metadata"]["name"]
        stage.host.apply(GPU_LEASE, name, "agent-trainer", status={"phase": "Active"})
        await stage.second()
        lease = stage.ledger.live_leases()[0]
        shown = stage.lease("trainer", "train")["status"]
        assert shown["phase"] == lease_status(lease).phase == "Pending"

    play(tmp_path, story)


def test_a_lease_the_ledger_does_not_know_is_removed(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        forged = {"finalizers": [FINALIZER]}
        stage.host.apply(GPU_LEASE, "lease-forged", "agent-chat", metadata=forged, spec={})
        await stage.second()
        assert stage.host.of(GPU_LEASE) == []

    play(tmp_path, story)


def test_a_copy_of_a_lease_under_another_name_is_removed(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.second()
        stage.bid("trainer", "train", 4, "2.00")
        await stage.second()
        shown = stage.lease("trainer", "train")
        forged = {"finalizers": [FINALIZER]}
        stage.host.apply(
            GPU_LEASE, "lease-forged", "agent-trainer", metadata=forged, spec=shown["spec"]
        )
        await stage.second()
        names = [lease["metadata"]["name"] for lease in stage.host.of(GPU_LEASE)]
        assert names == [shown["metadata"]["name"]]

    play(tmp_path, story)


@pytest.mark.parametrize("namespace", ["agent-chat", "default"])
def test_a_bid_cannot_name_another_agents_wallet(tmp_path: Path, namespace: str) -> None:
    async def story(stage: Stage) -> None:
        stage.host.apply(
            BID,
            "theft",
            namespace,
            spec={"gpus": 1, "maxPrice": "2.00"},
            metadata={"labels": {labels.AGENT: "trainer"}},
        )
        await stage.second()
        assert stage.ledger.live_leases() == []

    play(tmp_path, story)


def test_a_bid_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.second()
        stage.bid("trainer", "train", 4, "cheap")
        await stage.second()
        status = stage.status("trainer", "train")
        assert (status["phase"], status["reason"]) == ("Refused", "BadPrice")
        assert status["message"].startswith("'cheap' is not an amount of credits")

    play(tmp_path, story)
