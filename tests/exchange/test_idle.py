"""
The incumbent's weight is for leases that are used: an idle one ranks by its bid alone, and a bid
that offers more has its GPUs; a busy one with the same figures keeps them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidplane.api.kinds import GPU_LEASE, RESOURCE_SLICE
from bidplane.api.lease import Phase
from bidplane.api.money import format_credits
from bidplane.api.times import rfc3339
from bidplane.core.market import RoundInput
from bidplane.core.market.clearing import preemption
from bidplane.core.market.model import ONE
from bidplane.errors import UserError
from bidplane.exchange.projector import lease_status
from bidplane.exchange.service import Exchange
from bidplane.exchange.views import explanation, lease_view, round_view
from bidplane.kube.client import Object
from bidplane.ledger.records import lease_id
from bidplane.ledger.rounds import explain_bid, replay
from bidplane.runtime.identity.credentials import Tokens
from bidplane.telemetry.model import Counters

from .market import Market
from .stage import Stage, play, slice_spec
from .words import PRICE, agent, bid

WEIGHT = preemption.incumbent_weight(30, 30)
IDLE = "idle: no incumbent weight"


@pytest.fixture
def taken(market: Market) -> Market:
    """All four GPUs run for the trainer, which offers `PRICE`."""
    market.round(
        bid("run", "trainer", 4, PRICE),
        agents=(agent("trainer", refill=1000), agent("chat", refill=1000)),
    )
    market.claim("run")
    market.round(after=400)
    return market


def rests(market: Market, uid: str = "run") -> dict[str, int]:
    return {lease_id(uid): round(market.now * 1000) - 300_000}


def test_an_idle_lease_loses_to_a_bid_just_above_its_own(taken: Market) -> None:
    report = taken.round(bid("rival", "chat", 4, PRICE + 1), idle=rests(taken))
    assert report.bids["rival"].phase == "Won"
    assert taken.lease("run").phase is Phase.DRAINING
    assert taken.lease("run").compensation > 0, "it is compensated as any other"


def test_a_busy_one_with_the_same_figures_keeps(taken: Market) -> None:
    report = taken.round(bid("rival", "chat", 4, PRICE + 1))
    assert report.bids["rival"].phase == "Waiting"
    assert taken.lease("run").phase is Phase.ACTIVE


def test_an_equal_bid_takes_nothing_from_an_idle_lease(taken: Market) -> None:
    report = taken.round(bid("rival", "chat", 4, PRICE), idle=rests(taken))
    assert report.bids["rival"].phase == "Waiting"


def test_it_has_its_weight_back_when_it_works(taken: Market) -> None:
    taken.round(idle=rests(taken))
    assert taken.lease("run").idle_since
    (seen,) = taken.engine_input().incumbents
    assert (seen.weight, seen.idle) == (ONE, True)
    taken.round(idle={})
    assert taken.lease("run").idle_since == 0
    (seen,) = taken.engine_input().incumbents
    assert (seen.weight, seen.idle) == (WEIGHT, False)


def test_all_who_ask_are_told_in_plain_words(taken: Market) -> None:
    taken.round(idle=rests(taken))
    lease = taken.lease("run")
    shown = lease_status(lease)
    assert (shown.message, bool(shown.idle_since)) == (IDLE, True)
    assert lease_view(lease, round(taken.now * 1000)).message == IDLE
    verdict, seen = explain_bid(taken.ledger, "run"), explanation(taken.ledger, "run", agent=None)
    assert verdict is not None
    assert seen is not None
    assert verdict.sentence.endswith(f"; its lease is {IDLE}")
    assert seen.message.endswith(f"; its lease is {IDLE}")
    report = taken.round(bid("rival", "chat", 4, PRICE + 1))
    (record,) = taken.ledger.rounds_after(report.round - 1, limit=1)
    (outcome,) = round_view(record, agent="trainer").outcomes
    assert outcome.message.startswith(f"outbid ({IDLE}); compensated with ")


def test_the_round_is_its_own_record_of_it(taken: Market) -> None:
    report = taken.round(bid("rival", "chat", 4, PRICE + 1), idle=rests(taken))
    (record,) = taken.ledger.rounds_after(report.round - 1, limit=1)
    assert replay(record).to_the_byte
    given_ = msgspec.json.decode(record.input, type=RoundInput)
    assert [(i.idle, i.weight) for i in given_.incumbents] == [(True, ONE)]


def test_no_pod_for_a_whole_window_is_idle_unless_the_gpus_say_otherwise(taken: Market) -> None:
    left = {lease_id("run"): round(taken.now * 1000)}
    taken.round(after=299, unused=left)
    assert taken.lease("run").idle_since == 0
    taken.round(after=1, used=frozenset(left))
    assert taken.lease("run").idle_since == 0, "a program may use it where no pod is"
    taken.round(after=0, used=frozenset())  # the window is over, to the millisecond
    assert taken.lease("run").idle_since == left[lease_id("run")]
    taken.round(unused={})
    assert taken.lease("run").idle_since == 0


def test_a_pool_may_say_that_nobody_is_ever_idle(taken: Market) -> None:
    never = tuple(msgspec.structs.replace(p, idle_seconds=0) for p in taken.world.pools)
    left = {lease_id("run"): 1}
    taken.round(pools=never, idle=rests(taken), unused=left)
    assert taken.lease("run").idle_since == 0


def test_a_term_protects_who_does_nothing(market: Market) -> None:
    termed = msgspec.structs.replace(bid("run", "trainer", 4, PRICE), term_seconds=3600)
    market.round(termed, agents=(agent("trainer", refill=9000), agent("chat", refill=9000)))
    market.claim("run")
    market.round(bid("rival", "chat", 4, 2 * PRICE), after=400, idle=rests(market))
    assert market.lease("run").phase is Phase.ACTIVE


@settings(max_examples=40, deadline=None)
@given(
    own=st.integers(PRICE // 10, 3 * PRICE),
    offered=st.integers(PRICE // 10, 3 * PRICE),
    is_idle=st.booleans(),
)
def test_rank_entry_and_stay_are_what_they_are_said_to_be(
    tmp_path_factory: pytest.TempPathFactory, own: int, offered: int, is_idle: bool
) -> None:
    """
    Who keeps the GPUs follows from price and weight; the price that is said to win does, and one
    less does not; staying costs no more than the bid, and one less than it would have lost.
    """
    weight = ONE if is_idle else WEIGHT

    def market() -> Market:
        made = Market(tmp_path_factory.mktemp("idle") / "ledger.db")
        made.change(agents=(agent("trainer", refill=9000), agent("chat", refill=9000)))
        made.round(bid("run", "trainer", 4, own))
        made.claim("run")
        made.round(after=100, idle=rests(made) if is_idle else {})
        return made

    first = market()
    report = first.round(bid("rival", "chat", 4, offered))
    wins = offered * ONE > own * weight
    assert (report.bids["rival"].phase == "Won") is wins
    if not wins:
        (kept,) = report.result.kept
        assert kept.price <= own
        floor = min(100_000, own)
        assert kept.price == floor or (kept.price - 1) * weight < offered * ONE
        (lost,) = report.result.lost
        assert report.result.lots[0].classes["4"] == lost.price_to_win
        assert lost.price_to_win is not None
        assert report.bids["rival"].price_to_win == format_credits(lost.price_to_win)
        for price, won in ((lost.price_to_win, True), (lost.price_to_win - 1, False)):
            again = market()
            seen = again.round(bid("other", "chat", 4, price))
            assert (seen.bids["other"].phase == "Won") is won
            again.ledger.close()
    first.ledger.close()


# The whole exchange, told by GPUs what they do.


class Told:
    """What the counters say; None is silence."""

    def __init__(self) -> None:
        self.percent: float | None = 0.0
        self.forged: tuple[Counters, ...] = ()
        self.asked: list[list[str]] = []

    async def __call__(self, nodes: Sequence[Object]) -> Sequence[Counters]:
        self.asked.append([node["metadata"]["name"] for node in nodes])
        if self.percent is None:
            raise UserError("the Prometheus at http://nowhere does not answer")
        own = [
            Counters(node="n1", index=n, uuid=f"GPU-{n}", utilisation_percent=self.percent)
            for n in range(4)
        ]
        return [*own, *self.forged]


class WatchedStage(Stage):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.told = Told()
        spec = slice_spec(4)
        for n, device in enumerate(spec["devices"]):
            device["attributes"] = {**device["attributes"], "uuid": {"string": f"GPU-{n}"}}
        self.host.apply(RESOURCE_SLICE, "n1", spec=spec)

    def make_exchange(self) -> Exchange:
        return Exchange(
            self.host, self.ledger, Tokens(b"key"), clock=self.clock, counters=self.told
        )

    async def watch(self, seconds: int) -> None:
        for _ in range(seconds // 15):
            await self.second(15)
            await self.exchange.look_at_use()
        await self.second()

    async def running(self) -> None:
        self.bid("trainer", "all", 4, "1.00")
        await self.second()
        self.claim("trainer", "all")
        await self.second()

    @property
    def said(self) -> str:
        return str(self.lease("trainer", "all")["status"]["message"])


def watched(tmp_path: Path, story: Any) -> None:
    play(tmp_path, story, stage=WatchedStage)


def test_gpus_that_do_nothing_make_their_lease_idle_and_the_host_says_so(tmp_path: Path) -> None:
    async def story(stage: WatchedStage) -> None:
        await stage.running()
        await stage.watch(285)
        assert stage.said == ""
        await stage.watch(45)
        assert stage.said == IDLE
        assert stage.told.asked[-1] == ["n1"], "only nodes that have leases are asked"
        stage.told.percent = 90.0
        await stage.watch(15)
        assert stage.said == ""

    watched(tmp_path, story)


def test_a_source_that_falls_silent_makes_nobody_idle(tmp_path: Path) -> None:
    async def story(stage: WatchedStage) -> None:
        await stage.running()
        stage.told.percent = None
        await stage.watch(900)
        assert stage.said == ""
        stage.told.percent = 0.0
        await stage.watch(330)
        assert stage.said == IDLE
        stage.told.percent = None
        await stage.watch(90)
        assert stage.said == "", "and nobody stays so for ever"

    watched(tmp_path, story)


def test_a_page_that_somebody_else_made_takes_no_rank_away(tmp_path: Path) -> None:
    """Two say it of one GPU: the one that works is believed."""

    async def story(stage: WatchedStage) -> None:
        await stage.running()
        stage.told.percent = 80.0
        stage.told.forged = tuple(
            Counters(node="elsewhere", index=n, uuid=f"GPU-{n}", utilisation_percent=0.0)
            for n in range(4)
        )
        await stage.watch(600)
        assert stage.said == ""

    watched(tmp_path, story)


def test_without_anybody_who_tells_a_lease_counts_as_used(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        stage.bid("trainer", "all", 4, "1.00")
        await stage.second()
        stage.claim("trainer", "all")
        for _ in range(60):
            await stage.second(15)
            await stage.exchange.look_at_use()
        assert stage.lease("trainer", "all")["status"]["message"] == ""

    play(tmp_path, story)


def test_that_no_pod_is_on_it_is_read_from_the_lease(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        stage.bid("trainer", "all", 4, "1.00")
        await stage.second()
        stage.claim("trainer", "all")
        await stage.second()
        lease = stage.lease("trainer", "all")
        said = {
            "type": "InUse",
            "status": "False",
            "lastTransitionTime": rfc3339(stage.clock.time),
        }
        conditions = [*lease["status"]["conditions"], said]
        stage.host.apply(
            GPU_LEASE,
            lease["metadata"]["name"],
            "agent-trainer",
            status={**lease["status"], "conditions": conditions},
        )
        await stage.second(299)
        assert stage.lease("trainer", "all")["status"]["message"] == ""
        await stage.second(2)
        assert stage.lease("trainer", "all")["status"]["message"] == IDLE

    play(tmp_path, story)
