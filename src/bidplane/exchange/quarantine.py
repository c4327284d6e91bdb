"""
Agents that are left out of rounds, because a round with them fails.

A round is one commit, so whatever an agent has written that nobody foresaw stops the market for
all. When a round fails, it is rehearsed without some of the agents until it is known whose rows
make it fail; these take no part until their Agent or one of their bids changes. Their leases run
on, and their wallets stay open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
import structlog

from bidplane.api.bid import BidReason
from bidplane.exchange.snapshot import AgentView, BidView, HostSnapshot
from bidplane.ledger.commit import BrokenPromise
from bidplane.storage.values import ConstraintError

# A round fails by these when its input is at fault. A full disk, a database that is gone and
# another writer are nobody's rows.
FAULTS = (
    ArithmeticError,  # OverflowError too: an integer that no column holds
    AssertionError,
    AttributeError,
    BrokenPromise,
    ConstraintError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)

Rehearse = Callable[[HostSnapshot], None]  # raises what the round would raise, and keeps nothing

log = structlog.get_logger(__name__)


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """Why an agent is left out, and the rows it was left out for."""

    message: str
    agent: AgentView
    bids: tuple[BidView, ...]


class AgentQuarantine:
    def __init__(self) -> None:
        self._cases: dict[str, Case] = {}  # by agent uid

    @property
    def messages(self) -> Mapping[str, str]:
        """By agent uid, why it is left out."""
        return {uid: case.message for uid, case in self._cases.items()}

    def apply(self, snapshot: HostSnapshot) -> HostSnapshot:
        """Return the snapshot without the agents that are left out; those that changed are in."""
        if not self._cases:
            return snapshot
        agents = {agent.uid: agent for agent in snapshot.agents}
        self._cases = {
            uid: case
            for uid, case in self._cases.items()
            if uid in agents and _rows(snapshot, agents[uid]) == (case.agent, case.bids)
        }
        return without(snapshot, self.messages)

    def accuse(self, snapshot: HostSnapshot, reasons: Mapping[str, str]) -> None:
        """Leave out agents, by uid, for a reason that was found otherwise."""
        for agent in snapshot.agents:
            if agent.uid in reasons and agent.uid not in self._cases:
                _, bids = _rows(snapshot, agent)
                self._cases[agent.uid] = Case(message=reasons[agent.uid], agent=agent, bids=bids)
                log.error("agent quarantined", agent=agent.name, reason=reasons[agent.uid])

    def search(self, snapshot: HostSnapshot, rehearse: Rehearse, error: Exception) -> bool:
        """
        Find the agents whose rows make the round fail, and leave them out. Returns False if the
        round fails without any agent's rows: then nobody is at fault.

        Leaving out more agents never makes a round fail, so the shortest failing-free prefix ends
        in one that is at fault; the search is repeated until the round passes.
        """
        suspects = [agent for agent in snapshot.agents if agent.uid not in self._cases]
        culprits: dict[str, AgentView] = {}

        def fails(left_out: Sequence[AgentView]) -> bool:
            named = {agent.uid: "suspected" for agent in (*left_out, *culprits.values())}
            try:
                rehearse(without(snapshot, {**self.messages, **named}))
            except FAULTS:
                return True
            return False

        if fails(suspects):
            return False
        while fails(()):
            low, high = 0, len(suspects)  # leaving out `low` fails, leaving out `high` does not
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if fails(suspects[:middle]) else (low, middle)
            culprit = suspects.pop(high - 1)
            culprits[culprit.uid] = culprit
        for uid, agent in culprits.items():
            message = (
                f"rounds fail with what agent {agent.name!r} or its bids say"
                f" ({type(error).__name__}: {error}): it takes no part until one of them changes"
            )
            _, bids = _rows(snapshot, agent)
            self._cases[uid] = Case(message=message, agent=agent, bids=bids)
            log.error("agent quarantined", agent=agent.name, error=repr(error))
        return True


def without(snapshot: HostSnapshot, left_out: Mapping[str, str]) -> HostSnapshot:
    """Return the snapshot with nothing of some agents but that they exist. `left_out`: why."""
    if not left_out:
        return snapshot
    names = {agent.name: left_out[agent.uid] for agent in snapshot.agents if agent.uid in left_out}
    return msgspec.structs.replace(
        snapshot,
        agents=tuple(
            AgentView(
                name=agent.name,
                uid=agent.uid,
                deleting=agent.deleting,
                problem=left_out[agent.uid],
            )
            if agent.uid in left_out
            else agent
            for agent in snapshot.agents
        ),
        bids=tuple(
            BidView(
                uid=bid.uid,
                namespace=bid.namespace,
                name=bid.name,
                agent=bid.agent,
                gpus=0,
                problem=names[bid.agent],
                bad=BidReason.QUARANTINED,
            )
            if bid.agent in names
            else bid
            for bid in snapshot.bids
        ),
    )


def _rows(snapshot: HostSnapshot, agent: AgentView) -> tuple[AgentView, tuple[BidView, ...]]:
    return agent, tuple(bid for bid in snapshot.bids if bid.agent == agent.name)
