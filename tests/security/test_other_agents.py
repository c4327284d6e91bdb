"""An agent learns neither whether others exist, nor anything of who had its name before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from bidplane.exchange.round.grants import HourlyGrant
from bidplane.ledger.records import lease_id
from exchange.test_http import NOW, Site, refusal, transfer
from exchange.words import PRICE, agent, bid


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path / "ledger.db")
    yield made
    made.ledger.close()


SMALL = HourlyGrant(refill=1, cap=1, is_default=False)


def normal(answer: tuple[int, bytes], name: str) -> tuple[int, str, str]:
    code, reason, message = refusal(answer)
    return code, reason, message.replace(name, "NAME")


@pytest.mark.parametrize("amount", ["1", "0", "99999", "a lot", "-1"])
def test_a_refused_transfer_is_the_same_for_an_agent_and_for_none(site: Site, amount: str) -> None:
    """Whatever is wrong with it, and though the other's wallet could not take it."""
    site.grants["uid-chat"] = SMALL
    there = normal(transfer(site, "trainer", "trainer", "chat", amount, key="a"), "chat")
    nowhere = normal(transfer(site, "trainer", "trainer", "nobody", amount, key="b"), "nobody")
    assert there == nowhere
    assert there[0] in (400, 409)


def test_a_used_key_says_the_same_of_both(site: Site) -> None:
    assert transfer(site, "trainer", "trainer", "chat", "1")[0] == 200
    site.grants["uid-chat"] = SMALL
    there = normal(transfer(site, "trainer", "trainer", "chat", "2"), "chat")
    assert there == normal(transfer(site, "trainer", "trainer", "nobody", "2"), "nobody")


def test_the_refusal_says_what_to_do(site: Site) -> None:
    _, reason, message = refusal(transfer(site, "trainer", "trainer", "nobody", "1"))
    assert reason == "NotTransferred"
    assert "Check the name, send less" in message


def test_an_owner_is_told_which_it_is(site: Site) -> None:
    site.grants["uid-chat"] = SMALL
    assert refusal(transfer(site, "host", "trainer", "nobody", "1"))[:2] == (404, "NotFound")
    assert refusal(transfer(site, "host", "trainer", "chat", "1"))[:2] == (409, "OverCap")


def test_a_new_agent_of_an_old_name_inherits_nothing(site: Site) -> None:
    old = site.token("trainer")
    site.round(NOW - 5, left=frozenset({lease_id("b1")}))
    again = msgspec.structs.replace(agent("trainer"), uid="uid-second")
    site.round(NOW, agents=(again, agent("chat")), bids=(bid("b9", "trainer", 4, PRICE),))
    new = site.token("trainer", "uid-second")
    assert refusal(site.ask(old, "wallets/trainer"))[:2] == (401, "Unauthorized")
    # Its wallet, statement and leases are its own.
    statement = msgspec.json.decode(site.ask(new, "wallets/trainer/statement")[1])
    assert [line["kind"] for line in statement["lines"]] == ["refill"]
    leases = msgspec.json.decode(site.ask(new, "leases")[1])["leases"]
    assert len(leases) == 1
    # Rounds and explanations show what has happened since it began.
    lines = site.ask(new, "rounds", query="after=0")[1].splitlines()
    outcomes = [o for line in lines for o in msgspec.json.decode(line)["outcomes"]]
    assert {outcome["bid"] for outcome in outcomes} == {"b9"}
    assert refusal(site.ask(new, "bids/b1/explain"))[0] == 404
    assert site.ask(new, "bids/b9/explain")[0] == 200
