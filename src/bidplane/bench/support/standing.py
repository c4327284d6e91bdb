"""A whole round of the exchange, its commit included, with bids that wait for leased GPUs."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec

from bidplane.api.lease import DeviceRef
from bidplane.exchange.engine import Engine
from bidplane.exchange.round.devices import DeviceView
from bidplane.exchange.snapshot import AgentView, BidView, HostSnapshot, PoolView
from bidplane.ledger import Ledger
from bidplane.ledger.leases import Terms
from bidplane.ledger.records import lease_id

_POOL = "h100"
_FLOOR = 300_000  # micro-credits per GPU-hour
_BIDS_OF_AN_AGENT = 500
_RICH = 10**15


class StandingRounds:
    """An exchange on which every GPU is leased, and `waiting` bids offer less than the leases."""

    def __init__(self, folder: Path, *, machines: int, waiting: int, seed: int) -> None:
        self.ledger = Ledger.open(folder / "ledger.db")
        self._engine = Engine(self.ledger)
        self._now = 1000.0
        agents = machines // 10 + -(-waiting // _BIDS_OF_AN_AGENT)
        self._world = HostSnapshot(
            agents=tuple(map(_agent, range(agents))),
            pools=(_pool(),),
            devices=tuple(_device(machine, gpu) for machine in range(machines) for gpu in range(8)),
            bids=tuple(_bid(f"held-{n}", n % agents, 8, 100 * _FLOOR) for n in range(machines)),
        )
        self.run()
        claimed = frozenset(lease_id(bid.uid) for bid in self._world.bids)
        dice = random.Random(seed)
        standing = tuple(
            _bid(f"b{n}", n % agents, dice.choice((1, 1, 2, 4, 8)), dice.randint(1, 9) * _FLOOR, n)
            for n in range(waiting)
        )
        self._world = msgspec.structs.replace(
            self._world, claimed=claimed, bids=(*self._world.bids, *standing)
        )
        self.run()

    def run(self) -> int:
        """Run a round a second later; return how many bids wait after it."""
        self._now += 1.0
        return len(self._engine.run_round(self._world, self._now).result.lost)


def _agent(number: int) -> AgentView:
    return AgentView(
        name=f"a{number}", uid=f"u{number}", owner=f"o{number}", refill=_RICH, cap=_RICH
    )


def _pool() -> PoolView:
    terms = Terms(notice_seconds=30, restart_seconds=30, epoch_seconds=60)
    return PoolView(name=_POOL, product="H100", floor=_FLOOR, target_percent=92, terms=terms)


def _device(machine: int, gpu: int) -> DeviceView:
    node = f"m{machine:05d}"
    return DeviceView(
        device=DeviceRef(node=node, driver="d", pool=node, name=f"gpu-{gpu}"),
        product="H100",
        domain=node,
    )


def _bid(uid: str, agent: int, gpus: int, price: int, created: int = 0) -> BidView:
    return BidView(
        uid=uid,
        namespace=f"agent-a{agent}",
        name=uid,
        agent=f"a{agent}",
        gpus=gpus,
        price=price,
        pool=_POOL,
        created=created,
    )
