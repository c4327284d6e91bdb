"""
What does not wait for the second: instant bids, served from the float when the host tells of
them, and urgent ones, for which a round is run at once, for a fee, as often as an owner may.
"""

from __future__ import annotations

from pathlib import Path

from bidplane.api.kinds import AGENT, BID, GPU_LEASE, POOL, RESOURCE_SLICE
from bidplane.core.market.pricing.early import FILL_MILLISECONDS, MOST
from bidplane.ledger.records import TransferKind

from .stage import Stage, crash_at_every_write, play, settle, slice_spec


async def with_a_float(stage: Stage) -> None:
    """Twenty GPUs, of which one is kept."""
    terms = {"product": "H100", "floorPrice": "0.10", "instantFloatPercent": 5}
    stage.host.apply(POOL, "h100", spec=terms)
    stage.host.apply(RESOURCE_SLICE, "n1", spec=slice_spec(20))
    await stage.second()


async def told(stage: Stage) -> None:
    """What was decided between two rounds reaches the host."""
    await settle()
    assert await stage.exchange.project() == 0
    await settle()


def test_an_instant_bid_has_its_lease_without_a_round(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        await with_a_float(stage)
        rounds = stage.ledger.last_round
        stage.bid("chat", "ask", 1, "2.00", instant=True)
        await told(stage)
        assert stage.lease("chat", "ask")["status"]["phase"] == "Pending"
        assert stage.lease("chat", "ask")["status"]["price"] == "0.105"
        assert stage.status("chat", "ask")["phase"] == "Won"
        assert stage.ledger.last_round == rounds
        # The next is not there until a round has kept another.
        stage.bid("chat", "next", 1, "2.00", instant=True)
        await told(stage)
        assert len(stage.host.of(GPU_LEASE)) == 1
        await stage.second()
        assert stage.status("chat", "next")["phase"] == "Won"
        assert stage.lease("chat", "next")["status"]["price"] == "0.10", "a round asks for less"

    play(tmp_path, story)


def test_a_bid_that_does_not_say_so_waits_for_the_round(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        await with_a_float(stage)
        stage.bid("chat", "ask", 1, "2.00")
        stage.bid("trainer", "poor", 1, "0.10", instant=True)  # the float asks for more
        await told(stage)
        assert stage.host.of(GPU_LEASE) == []

    play(tmp_path, story)


def test_what_nobody_claims_is_given_back_after_a_minute(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        await with_a_float(stage)
        stage.bid("chat", "ask", 1, "2.00", instant=True)
        await told(stage)
        await stage.second(59)
        assert stage.lease("chat", "ask")["status"]["phase"] == "Pending"
        await stage.second(2)
        assert stage.host.of(GPU_LEASE) == []
        assert stage.status("chat", "ask")["phase"] == "Ended"

    play(tmp_path, story)


async def asks_and_leaves(stage: Stage) -> None:
    """Every write of an instant sale: the lease, its status, the bid's, and its end."""
    await with_a_float(stage)
    stage.bid("chat", "ask", 1, "2.00", instant=True)
    # Served when it is heard of; or, by one that took over in between, in its first round.
    await stage.second()
    assert stage.status("chat", "ask")["phase"] == "Won"
    stage.claim("chat", "ask")
    await stage.second()
    assert stage.lease("chat", "ask")["status"]["phase"] == "Active"
    stage.give_back("chat", "ask")
    await stage.second(20)
    assert stage.host.of(GPU_LEASE) == []
    await stage.second()


def test_a_crash_at_any_write_sells_once_and_loses_nothing(tmp_path: Path) -> None:
    crash_at_every_write(tmp_path, asks_and_leaves, writes=8)


def fees(stage: Stage) -> int:
    return sum(
        transfer.kind is TransferKind.EARLY for transfer in stage.ledger.transfers_of("revenue")
    )


def urgent_in(stage: Stage) -> bool:
    return stage.exchange._urgent.is_set()


async def ask_urgently(stage: Stage, agent: str, name: str, price: str = "2.00") -> bool:
    """Whether a round is run for it at once."""
    stage.exchange._urgent.clear()
    stage.bid(agent, name, 1, price, urgent=True)
    await settle()
    asked = urgent_in(stage)
    stage.exchange.run_round()
    await told(stage)
    return asked


def test_an_urgent_bid_has_its_round_at_once_and_pays_for_it(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.second()
        stage.bid("trainer", "calm", 1, "2.00")
        await settle()
        assert not urgent_in(stage)
        assert await ask_urgently(stage, "chat", "ask")
        assert stage.status("chat", "ask")["phase"] == "Won"
        assert fees(stage) == 1
        # Told of again, by a status that was written or a watch that began anew: not again.
        stage.exchange._urgent.clear()
        stage.host.apply(AGENT, "chat")
        await stage.second()
        assert fees(stage) == 1

    play(tmp_path, story)


def test_an_owner_asks_so_often_and_then_waits(tmp_path: Path) -> None:
    """Five in a row; another owner has its own; one more when the bucket has filled."""

    async def story(stage: Stage) -> None:
        await stage.second()
        stage.host.apply(AGENT, "twin", spec={"owner": "chat", "refill": "100"})
        await stage.second()
        for n in range(MOST):
            agent = ("chat", "twin")[n % 2]  # agents of one owner share its bucket
            assert await ask_urgently(stage, agent, f"low-{n}", "0.05")
        assert not await ask_urgently(stage, "twin", "one-more", "0.05")
        assert await ask_urgently(stage, "trainer", "other", "0.05")
        assert fees(stage) == MOST + 1
        stage.clock.time += FILL_MILLISECONDS / 1000
        assert await ask_urgently(stage, "chat", "later", "0.05")
        assert fees(stage) == MOST + 2

    play(tmp_path, story)


def test_a_bid_that_is_told_of_again_asks_once(tmp_path: Path) -> None:
    """A label that changes before its first round is not another round."""

    async def story(stage: Stage) -> None:
        await stage.second()
        stage.bid("chat", "ask", 1, "0.05", urgent=True)
        await settle()
        for n in range(MOST):
            bid = stage.host.objects["bids", "agent-chat", "ask"]
            marks = {**bid["metadata"]["labels"], "seen": str(n)}
            stage.host.apply(BID, "ask", "agent-chat", metadata={"labels": marks})
            await settle()
        for n in range(MOST - 1):
            assert await ask_urgently(stage, "chat", f"low-{n}", "0.05")
        assert not await ask_urgently(stage, "chat", "one-more", "0.05")

    play(tmp_path, story)


def test_an_urgent_bid_that_the_float_serves_pays_no_fee(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        await with_a_float(stage)
        stage.exchange._urgent.clear()
        stage.bid("chat", "ask", 1, "2.00", instant=True, urgent=True)
        await told(stage)
        assert stage.status("chat", "ask")["phase"] == "Won"
        assert not urgent_in(stage)
        await stage.second()
        assert fees(stage) == 0

    play(tmp_path, story)
