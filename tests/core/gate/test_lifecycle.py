"""The table of a Proposal's phases."""

from __future__ import annotations

import itertools

import pytest

from bidplane.api.gate.proposal import ProposalPhase
from bidplane.core.gate.lifecycle import FINAL, TRANSITIONS, ProposalEvent, WrongPhase, after


def test_what_is_not_in_the_table_raises() -> None:
    for phase, event in itertools.product((None, *ProposalPhase), ProposalEvent):
        if event in TRANSITIONS[phase]:
            assert after(phase, event) is TRANSITIONS[phase][event]
        else:
            with pytest.raises(WrongPhase, match=f"cannot be {event}"):
                after(phase, event)


def test_it_is_applied_only_after_a_verdict_and_once() -> None:
    def paths(phase: ProposalPhase | None, path: tuple[ProposalEvent, ...]) -> None:
        if len(path) > 8:
            return
        if phase is ProposalPhase.APPLIED:
            assert path.count(ProposalEvent.BEGUN) == path.count(ProposalEvent.APPLIED) == 1
            assert path.index(ProposalEvent.ALLOWED) < path.index(ProposalEvent.BEGUN)
        for event, then in TRANSITIONS[phase].items():
            paths(then, (*path, event))

    paths(None, ())
    assert ProposalPhase.APPLIED in FINAL
    assert ProposalPhase.APPLYING not in FINAL
