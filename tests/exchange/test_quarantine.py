"""An agent whose rows no round can take is left out and named; the market goes on for the rest."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from bidplane.api.kinds import AGENT
from bidplane.exchange import engine
from bidplane.exchange.quarantine import AgentQuarantine, without
from bidplane.exchange.snapshot import AgentView, BidView, HostSnapshot

from .stage import Stage, play


def message_of(stage: Stage, agent: str) -> str:
    status = stage.host.objects["agents", "", agent].get("status") or {}
    return str(status.get("message", ""))


def test_an_agent_with_too_large_a_refill_gets_nothing_and_stops_nobody(tmp_path: Path) -> None:
    """Written by a version, or on a host, that did not refuse it."""

    async def story(stage: Stage) -> None:
        stage.host.apply(
            AGENT, "typo", spec={"owner": "o", "refill": "99999999999", "priority": 1000}
        )
        await stage.second()
        stage.bid("trainer", "train", 1, "2.00")
        stage.bid("typo", "more", 1, "2.00")
        await stage.second()
        assert stage.status("trainer", "train")["phase"] == "Won"
        assert "1000000000.00" in message_of(stage, "typo"), "the largest grant is named"
        assert stage.ledger.account("wallet/uid-agents-typo") is None
        stage.host.apply(AGENT, "typo", spec={"owner": "o", "refill": "10"})
        await stage.second()
        await stage.second()
        assert message_of(stage, "typo") == ""
        assert stage.status("typo", "more")["phase"] == "Won"

    play(tmp_path, story)


def test_rows_that_nobody_foresaw_are_found_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = engine.clear_round

    def cannot_take_seven(given: engine.RoundInput) -> engine.RoundResult:
        if any(ask.price == 7_000_000 for ask in given.asks):
            raise OverflowError("seven")
        return real(given)

    monkeypatch.setattr(engine, "clear_round", cannot_take_seven)

    async def story(stage: Stage) -> None:
        await stage.second()
        stage.bid("trainer", "train", 1, "2.00")
        stage.bid("chat", "odd", 1, "7.00")
        await stage.second()
        assert stage.status("trainer", "train")["phase"] == "Won"
        assert stage.status("chat", "odd")["reason"] == "Quarantined"
        assert "seven" in stage.status("chat", "odd")["message"]
        assert "chat" in message_of(stage, "chat")
        assert message_of(stage, "trainer") == ""
        wallet = stage.ledger.account("wallet/uid-agents-chat")
        assert wallet is not None
        assert (wallet.is_open, wallet.posted) == (True, 100_000_000)
        stage.bid("chat", "odd", 1, "6.00")
        await stage.second()
        assert stage.status("chat", "odd")["phase"] == "Won"
        await stage.second()
        assert message_of(stage, "chat") == ""

    play(tmp_path, story)


def test_a_fault_that_is_no_agents_is_not_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(given: engine.RoundInput) -> engine.RoundResult:
        raise OverflowError("whoever bids")

    async def story(stage: Stage) -> None:
        await stage.second()
        stage.bid("trainer", "train", 1, "2.00")
        with monkeypatch.context() as patched:
            patched.setattr(engine, "clear_round", broken)
            with pytest.raises(OverflowError):
                await stage.second()
        assert stage.ledger.live_leases() == []
        await stage.second()
        assert stage.status("trainer", "train")["phase"] == "Won"

    play(tmp_path, story)


@pytest.mark.parametrize("seed", range(40))
def test_the_search_finds_exactly_those_at_fault(seed: int) -> None:
    dice = random.Random(seed)
    names = [f"agent-{n}" for n in range(dice.randint(1, 60))]
    at_fault = set(dice.sample(names, dice.randint(0, min(5, len(names)))))
    snapshot = HostSnapshot(
        agents=tuple(AgentView(name=name, uid=name) for name in names),
        bids=tuple(
            BidView(uid=f"bid-{name}", namespace=name, name="b", agent=name, gpus=1)
            for name in names
        ),
    )

    def rehearse(part: HostSnapshot) -> None:
        if at_fault & {bid.agent for bid in part.bids if not bid.problem}:
            raise OverflowError

    quarantine = AgentQuarantine()
    assert quarantine.search(snapshot, rehearse, OverflowError("x"))
    assert set(quarantine.messages) == at_fault
    rehearse(quarantine.apply(snapshot))
    changed = msgspec.structs.replace(
        snapshot, bids=tuple(msgspec.structs.replace(bid, gpus=2) for bid in snapshot.bids)
    )
    assert quarantine.apply(changed) == changed, "what has changed is tried again"


def test_who_is_left_out_still_exists() -> None:
    """Or its wallet would be closed."""
    agent = AgentView(name="a", uid="u", refill=5, deleting=True)
    (left,) = without(HostSnapshot(agents=(agent,)), {"u": "why"}).agents
    assert (left.uid, left.refill, left.deleting, left.problem) == ("u", 0, True, "why")
