"""The gate of a real installation, with the real kubectl: a refusal, an approval, an undo."""

from __future__ import annotations

import sqlite3
import time
from typing import Any

import msgspec
import pytest

from .conftest import Installation

pytestmark = [pytest.mark.slow, pytest.mark.kubectl]

PATIENCE_SECONDS = 30.0


def proposal(bidplane: Installation, name: str, phase: str) -> Any:
    """The Proposal, once it is in that phase."""
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        shown = msgspec.json.decode(bidplane.bidplane("proposals", "show", name, "--json"))
        if shown.get("status", {}).get("phase") == phase or time.monotonic() > end:
            assert shown.get("status", {}).get("phase") == phase, shown
            return shown
        time.sleep(0.1)


def test_a_change_waits_for_somebody_else_and_can_be_taken_back(fresh: Installation) -> None:
    fresh.up()
    for name, role in (("oli", "operator"), ("bea", "approver")):
        assert f"{role} {name}: wrote" in fresh.bidplane("user", "create", name, "--role", role)
    refused = fresh.kubectl("oli", "cordon", "box")  # which exits with 0 all the same
    assert "needs the approval of one person (owner or approver)" in refused
    name = refused.split("Proposal ")[1].split()[0]
    waiting = proposal(fresh, name, "Waiting")
    columns = fresh.kubectl("bea", "get", "proposals")
    header, row = columns.splitlines()
    assert header.split() == ["NAME", "ACTION", "BY", "PHASE", "REASON", "DEVICES", "AGE"]
    assert row.split()[:7] == [name, "CordonNode", "box", "oli", "Waiting", "NeedsApproval", "2"]
    digest = waiting["status"]["digest"][:16]
    assert f"bidplane proposals approve {name} --digest {digest}" in fresh.bidplane(
        "proposals", "show", name, "--as", "bea.kubeconfig"
    )
    own = fresh.bidplane(
        "proposals", "approve", name, "--digest", digest, "--as", "oli.kubeconfig", code=2
    )
    assert "somebody else must approve it" in own
    fresh.bidplane("proposals", "approve", name, "--digest", digest, "--as", "bea.kubeconfig")
    proposal(fresh, name, "Applied")
    assert fresh.get("bea", "node", "box")["spec"]["unschedulable"] is True

    # Restarted, it knows all of it.
    assert fresh.down() == 0
    fresh.up(port=None)
    proposal(fresh, name, "Applied")
    undone = fresh.bidplane("proposals", "undo", name)
    proposal(fresh, undone.split("proposed ")[1].split(":")[0], "Applied")
    assert not fresh.get("bea", "node", "box")["spec"].get("unschedulable")
    why = fresh.bidplane("proposals", "why", name)
    assert "approver bea: approved by bea" in why
    assert "operator oli: needs the approval" in why
    assert "the audit is sound" in fresh.bidplane("audit", "verify")
    lines = fresh.bidplane("audit", "export").splitlines()
    assert [msgspec.json.decode(line)["sequence"] for line in lines] == list(
        range(1, len(lines) + 1)
    )
    assert "the ledger is sound" in fresh.bidplane("ledger", "verify")

    # Whoever may write the file can drop the triggers, and shows in the chain.
    fresh.down()
    database = sqlite3.connect(fresh.data / "ledger.db")
    with pytest.raises(sqlite3.IntegrityError, match="never changed"):
        database.execute("UPDATE audit SET actor = 'nobody' WHERE sequence = 2")
    database.execute("DROP TRIGGER audit_is_never_changed")
    database.execute("UPDATE audit SET actor = 'nobody' WHERE sequence = 2")
    database.commit()
    database.close()
    assert "entry 2 was changed" in fresh.bidplane("audit", "verify", code=1)


def test_the_pilot_proposes_with_a_credential_of_its_own(fresh: Installation) -> None:
    fresh.up()
    assert "no device is held and idle" in fresh.bidplane("idle")
    # A box and nobody on it: it is the pool's last, so it stays.
    output = fresh.bidplane("pilot", "run", "--for", "2s", "--park-after", "1s", "--shadow")
    assert "in shadow: nothing is applied" in output
    assert "could not" not in output
    assert fresh.bidplane("proposals", "list").splitlines()[1:] == []
    wrong = fresh.bidplane("pilot", "run", "--for", "soon", code=2)
    assert "--for 'soon': write a number and s, m, h or d, as 30m" in wrong
