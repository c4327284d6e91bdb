"""
An agent with thousands of standing bids delays nobody: a neighbour's bid is won, and its lease
shown, by the next round; and what the losers hear is not written again each second.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bidplane.api.kinds import AGENT, BID
from bidplane.exchange.projector import LOSERS_AT_ONCE
from exchange.stage import Stage, play, settle

MANY = 600


class Counting(Stage):
    """A stage that counts the statuses of bids that are written."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.told: list[str] = []
        patch = self.host.patch

        async def counted(kind: Any, name: str, *args: Any, **more: Any) -> Any:
            if kind is BID:
                self.told.append(name)
            return await patch(kind, name, *args, **more)

        self.host.patch = counted  # type: ignore[method-assign]


def crowd(stage: Stage) -> None:
    for n in range(MANY):
        stage.bid("trainer", f"many-{n:04}", 4, "0.20")


def reasons(stage: Stage) -> Mapping[str, int]:
    counts: dict[str, int] = {}
    for bid in stage.host.of(BID):
        reason = (bid.get("status") or {}).get("reason", "")
        counts[reason] = counts.get(reason, 0) + 1
    return counts


def test_a_neighbours_win_is_shown_before_the_crowds_losses(tmp_path: Path) -> None:
    async def story(stage: Any) -> None:
        crowd(stage)
        await settle()
        stage.exchange.run_round()
        await stage.exchange.project()
        assert len(stage.told) <= LOSERS_AT_ONCE + 1
        # While most of the crowd has not been told of the round before.
        stage.bid("chat", "mine", 4, "9.00")
        await settle()
        stage.clock.time += 1
        stage.exchange.run_round()
        await stage.exchange.project()
        assert stage.status("chat", "mine")["phase"] == "Won"
        assert stage.lease("chat", "mine")
        assert reasons(stage)[""] > MANY - 3 * LOSERS_AT_ONCE

    play(tmp_path, story, Counting)


def test_a_neighbours_loss_is_told_in_turn_with_the_crowds(tmp_path: Path) -> None:
    async def story(stage: Any) -> None:
        crowd(stage)
        stage.bid("chat", "mine", 4, "0.15")
        await settle()
        stage.exchange.run_round()
        await stage.exchange.project()
        assert stage.status("chat", "mine")["reason"]

    play(tmp_path, story, Counting)


def test_standing_bids_are_not_told_the_same_again(tmp_path: Path) -> None:
    """Also when the wallet of their agent, and the number of the round, have changed."""

    async def story(stage: Any) -> None:
        crowd(stage)
        await stage.second()
        winner = next(
            bid["metadata"]["name"] for bid in stage.host.of(BID) if bid["status"]["phase"] == "Won"
        )
        stage.claim("trainer", winner)
        await stage.second()
        stage.told.clear()
        for n in range(5):
            stage.bid("chat", f"other-{n}", 8, "0.01")
            await stage.second(30)
        crowded = [name for name in stage.told if name.startswith("many-")]
        assert len(crowded) < MANY // 10

    play(tmp_path, story, Counting)


def test_an_agent_has_as_many_standing_bids_as_its_spec_says(tmp_path: Path) -> None:
    async def story(stage: Any) -> None:
        stage.host.apply(AGENT, "trainer", spec={"owner": "t", "refill": "100", "maxBids": 10})
        for n in range(15):
            stage.bid("trainer", f"many-{n:04}", 4, "0.20")
        stage.bid("chat", "mine", 4, "0.10")
        await stage.second()
        assert reasons(stage)["TooManyBids"] == 5
        told = [
            bid["status"]["message"]
            for bid in stage.host.of(BID)
            if bid["status"]["reason"] == "TooManyBids"
        ]
        assert all("10 older bids" in message and "maxBids" in message for message in told)

    play(tmp_path, story, Counting)
