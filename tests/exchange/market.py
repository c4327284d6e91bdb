"""A small exchange on a clock that is told the time, for tests that play stories on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from bidplane.core.market import RoundInput
from bidplane.exchange.engine import Engine, RoundReport
from bidplane.exchange.round import inputs, inventory
from bidplane.exchange.snapshot import BidView, HostSnapshot
from bidplane.ledger import Ledger
from bidplane.ledger.records import Lease, lease_id, wallet_of

from .words import agent, gpus, pool


class Market:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.now = 1_000_000.0
        self.world = HostSnapshot(
            agents=(agent("trainer"), agent("chat")), pools=(pool(),), devices=gpus(4)
        )
        self.ledger = Ledger.open(path, durable=False)
        self.engine = Engine(self.ledger)

    def restart(self) -> None:
        self.ledger.close()
        self.ledger = Ledger.open(self.path, durable=False)
        self.engine = Engine(self.ledger)

    def change(self, **changes: Any) -> None:
        self.world = msgspec.structs.replace(self.world, **changes)

    def round(self, *bids: BidView, after: float = 1.0, **changes: Any) -> RoundReport:
        self.now += after
        if bids:
            self.change(bids=(*self.world.bids, *bids))
        self.change(**changes)
        return self.engine.run_round(self.world, self.now)

    def claim(self, *bids: str, after: float = 1.0) -> RoundReport:
        claimed = self.world.claimed | {lease_id(b) for b in bids}
        return self.round(claimed=claimed, after=after)

    def leave(self, *bids: str, after: float = 1.0) -> RoundReport:
        left = self.world.left | {lease_id(b) for b in bids}
        return self.round(left=left, after=after)

    def lease(self, bid: str) -> Lease:
        found = self.ledger.lease_of_bid(bid)
        assert found is not None
        return found

    def balance(self, name: str) -> int:
        account = self.ledger.account(wallet_of(f"uid-{name}"))
        assert account is not None
        return account.posted

    def engine_input(self) -> RoundInput:
        """What the market is given now."""
        with self.ledger.commit(round(self.now * 1000)) as commit:
            standing = inputs.standing_bids(commit, self.world)
            shop = inventory.build_inventory(self.world.pools, self.world.devices, standing)
            return inputs.round_input(commit, self.world, standing, shop)[0]

    def fund(self, pool: str = "h100") -> int:
        account = self.ledger.account(f"fund/{pool}")
        assert account is not None
        return account.posted

    def kept(self) -> list[Lease]:
        """What is kept for leases that move."""
        return [lease for lease in self.ledger.live_leases() if lease.is_reservation]

    def moved(self) -> Lease:
        (found,) = [lease for lease in self.ledger.live_leases() if lease.reason == "Moved"]
        return found
