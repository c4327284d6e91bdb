"""The table of a lease's life."""

from __future__ import annotations

import itertools

import pytest

from bidplane.api.lease import Phase
from bidplane.core.leases.lifecycle import TRANSITIONS, LeaseError, LeaseEvent, after


@pytest.mark.parametrize(("phase", "event"), list(itertools.product(Phase, LeaseEvent)))
def test_only_what_is_in_the_table_can_happen(phase: Phase, event: LeaseEvent) -> None:
    if event in TRANSITIONS[phase]:
        assert after(phase, event) is TRANSITIONS[phase][event]
    else:
        with pytest.raises(LeaseError, match=f"{event} cannot happen to a lease that is {phase}"):
            after(phase, event)


def test_every_phase_leads_to_release_and_release_to_nothing() -> None:
    assert set(TRANSITIONS) == set(Phase)
    assert not TRANSITIONS[Phase.RELEASED]
    for phase in set(Phase) - {Phase.RELEASED}:
        assert TRANSITIONS[phase][LeaseEvent.LEFT] is Phase.RELEASED
