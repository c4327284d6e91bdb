"""
The agents in work when the exchange was killed for blocking its loop.

A round that takes forever raises nothing: the supervisor kills the process, and the next one meets
the same rows. So before a round the agents whose rows are new in it are written down, and after it
they are crossed out. A process that finds them still there, from long enough ago that it was a
stall, counts it against them; at the second time they are left out of rounds, until they change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec
import structlog

from bidplane.exchange.snapshot import AgentView, BidView, HostSnapshot

FILE = "exchange.work"  # in the installation's folder
SLOW_SECONDS = 1.0  # a round that takes longer is logged
STALL_SECONDS = 5.0  # who is killed sooner was not killed for a stall
TWICE = 2
SUSPECTS_MOST = 3  # of more, it is not known which one it was

log = structlog.get_logger(__name__)


class StallSuspects(msgspec.Struct, frozen=True, kw_only=True):
    """The agents of a round, by uid, and how often they have stalled one."""

    began: float = 0.0  # 0: no round is being run
    agents: dict[str, str] = {}  # by uid, a digest of what they said
    stalls: dict[str, int] = {}
    digests: dict[str, str] = {}  # of those that stalled a round


class Stalls:
    def __init__(self, path: Path | None, *, now: float) -> None:
        """`path`: the file that records the agents in work; None records nothing."""
        self._path = path
        self._bids: dict[str, BidView] = {}  # of the last round that was completed
        self._agents: dict[str, AgentView] = {}
        self._suspects: tuple[str, ...] = ()
        self._working: tuple[str, ...] = ()
        work = _read(path)
        self._stalls, self._digests = dict(work.stalls), dict(work.digests)
        if work.began and now - work.began >= STALL_SECONDS:
            self._suspects = tuple(work.agents)
            for uid, digest in work.agents.items():
                unchanged = self._digests.get(uid) == digest
                self._stalls[uid] = self._stalls.get(uid, 0) + 1 if unchanged else 1
                self._digests[uid] = digest
            log.error("the last round was never completed", agents=self._suspects)

    def culprits(self, snapshot: HostSnapshot) -> Mapping[str, str]:
        """
        By agent uid, why it must be left out: its objects are the same as when rounds stalled.
        """
        twice = {uid for uid, count in self._stalls.items() if count >= TWICE}
        now = _digests(snapshot, twice)
        unchanged = [uid for uid in now if now[uid] == self._digests.get(uid)]
        if len(unchanged) > SUSPECTS_MOST:
            return {}
        message = (
            f"rounds with what it or its bids say were not completed, {TWICE} times: it takes no"
            " part until one of them changes"
        )
        return dict.fromkeys(unchanged, message)

    def begin(self, snapshot: HostSnapshot, now: float) -> None:
        """Record the agents that changed since the last round, before this one runs."""
        self._working = self._changed(snapshot)
        self._suspects = ()
        if self._working:
            agents = _digests(snapshot, self._working)
            self._write(
                StallSuspects(began=now, agents=agents, stalls=self._stalls, digests=self._digests)
            )

    def end(self, snapshot: HostSnapshot, seconds: float) -> None:
        """Record that the round was completed, so that none of its agents stalled it."""
        if seconds > SLOW_SECONDS:
            names = {agent.uid: agent.name for agent in snapshot.agents}
            log.warning(
                "slow round",
                seconds=round(seconds, 1),
                agents=[names.get(uid, uid) for uid in self._working[:10]],
                pools=[pool.name for pool in snapshot.pools],
                bids=len(snapshot.bids),
            )
        self._bids = {bid.uid: bid for bid in snapshot.bids}
        self._agents = {agent.uid: agent for agent in snapshot.agents}
        if self._working:
            # Those left out were not in it; the others have passed.
            left_out = {agent.uid for agent in snapshot.agents if agent.problem}
            self._stalls = {uid: n for uid, n in self._stalls.items() if uid in left_out}
            self._write(StallSuspects(stalls=self._stalls, digests=self._digests))

    def _changed(self, snapshot: HostSnapshot) -> tuple[str, ...]:
        """
        The agents that changed since the last completed round; after a stall, the suspects that
        still exist.
        """
        uids = {agent.name: agent.uid for agent in snapshot.agents}
        if self._suspects:
            return tuple(uid for uid in self._suspects if uid in uids.values())
        # The very same view is the usual case, and costs nothing to compare.
        replaced = (bid for bid in snapshot.bids if self._bids.get(bid.uid) is not bid)
        names = {bid.agent for bid in replaced if self._bids.get(bid.uid) != bid}
        changed = {uids[name] for name in names if name in uids}
        changed |= {agent.uid for agent in snapshot.agents if self._agents.get(agent.uid) != agent}
        return tuple(sorted(changed))

    def _write(self, work: StallSuspects) -> None:
        if self._path is not None:
            self._path.write_bytes(msgspec.json.encode(work))


def _digests(snapshot: HostSnapshot, uids: Collection[str]) -> dict[str, str]:
    """By agent uid, a digest of what it and its bids say."""
    if not uids:
        return {}
    rows: dict[str, list[AgentView | BidView]] = {}
    for bid in snapshot.bids:
        rows.setdefault(bid.agent, []).append(bid)
    return {
        agent.uid: hashlib.sha256(
            msgspec.json.encode([agent, *sorted(rows.get(agent.name, ()), key=_uid)])
        ).hexdigest()
        for agent in snapshot.agents
        if agent.uid in uids
    }


def _uid(row: AgentView | BidView) -> str:
    return row.uid


def _read(path: Path | None) -> StallSuspects:
    try:
        return (
            msgspec.json.decode(path.read_bytes(), type=StallSuspects) if path else StallSuspects()
        )
    except (OSError, msgspec.MsgspecError):
        return StallSuspects()  # never written, or cut short: then nothing is held against anybody
