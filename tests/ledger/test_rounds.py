"""A recorded round comes out the same again, and can say what it meant for a bid."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bidplane.cli import market
from bidplane.core.market import (
    Ask,
    Domain,
    Incumbent,
    Lot,
    RoundInput,
    clear_round,
)
from bidplane.core.market.model import RULES
from bidplane.errors import UserError
from bidplane.ledger import Ledger
from bidplane.ledger.rounds import explain_bid, find_round, replay

from .conftest import Place

CREDIT = 1_000_000


def ask(id: str, gpus: int, price: int, hold: int = 0) -> Ask:
    return Ask(
        id=id, agent=id, owner=id, gpus=gpus, price=price * CREDIT, tie=9, hold={"h100": hold}
    )


GIVEN = RoundInput(
    at=1000,
    rules=RULES,
    lots=(
        Lot(
            name="h100",
            base=CREDIT,
            posted=CREDIT,
            domains=(Domain(name="n1", size=8, free=("0", "1", "2", "3")),),
        ),
    ),
    asks=(ask("win", 4, 3), ask("lose", 4, 2), ask("low", 1, 0), ask("poor", 1, 5, hold=1)),
    incumbents=(
        Incumbent(
            id="l1",
            agent="old",
            owner="old",
            lot="h100",
            domain="n1",
            devices=("4", "5", "6", "7"),
            price=4 * CREDIT,
            weight=1280,
            reserve=CREDIT,
            compensation=0,
        ),
    ),
)


@pytest.fixture
def ledger(place: Place) -> Ledger:
    ledger = Ledger.open(place, durable=False)
    with ledger.commit(1000) as commit:
        commit.add_round(
            input=msgspec.json.encode(GIVEN), result=msgspec.json.encode(clear_round(GIVEN))
        )
    return ledger


def test_a_round_comes_out_the_same_again(
    ledger: Ledger, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    found = replay(find_round(ledger, 1))
    assert found.is_same
    market.replay(1, ledger=str(place))
    assert "the same result again, to the byte" in capsys.readouterr().out


def test_a_result_that_was_otherwise_is_noticed(
    ledger: Ledger, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    result = clear_round(GIVEN)
    with ledger.commit(2000) as commit:
        other = msgspec.structs.replace(result, won=())
        commit.add_round(input=msgspec.json.encode(GIVEN), result=msgspec.json.encode(other))
    assert replay(find_round(ledger, 2)).differences == ("won",)
    with pytest.raises(SystemExit) as left:
        market.replay(2, ledger=str(place))
    assert left.value.code == 1
    assert "now has another result: won" in capsys.readouterr().out


def test_a_round_that_was_never_is_refused(ledger: Ledger) -> None:
    for number in (-1, 0, 2):
        with pytest.raises(UserError, match="rounds 1 to 1 are recorded"):
            find_round(ledger, number)


@pytest.mark.parametrize(
    ("bid", "says"),
    [
        ("win", "won 4 GPUs in h100 at 2.000001 per GPU-hour, 8.000004 an hour; it offered 3.00"),
        ("lose", "Outbid: your maximum of 2.00 credits per GPU-hour lost to 3.00."),
        ("low", "Your maximum of 0.00 credits per GPU-hour is below what h100 sells for."),
        ("poor", "The wallet is 0.000001 credits short"),
    ],
)
def test_one_sentence_says_why(
    ledger: Ledger, place: Place, bid: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    market.explain(bid, ledger=str(place))
    said = capsys.readouterr().out
    assert said.startswith(f"{bid}, round 1: {says}")
    assert "an hour" in said


def test_a_bid_nobody_knows_is_refused(ledger: Ledger, place: Place) -> None:
    with pytest.raises(UserError, match="no recorded round has"):
        market.explain("nobody", ledger=str(place))


def test_a_bid_is_found_in_a_round_long_ago(ledger: Ledger) -> None:
    empty = RoundInput(at=0, lots=())
    with ledger.commit(2000):
        pass
    for at in range(120):
        with ledger.commit(3000 + at) as commit:
            commit.add_round(
                input=msgspec.json.encode(empty), result=msgspec.json.encode(clear_round(empty))
            )
    verdict = explain_bid(ledger, "win")
    assert verdict is not None
    assert verdict.round == 1


def test_a_place_without_a_ledger_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no ledger in"):
        market.replay(1, data=tmp_path)
