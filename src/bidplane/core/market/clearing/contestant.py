"""A bid or a running lease, as clearing sees it, and the order in which they are taken."""

from __future__ import annotations

from typing import NamedTuple

from bidplane.core.devices.chain import Block


class Contestant(NamedTuple):
    """A bid or a running lease, as clearing sees it."""

    id: str
    block: Block
    price: int
    weight: int
    tie: int
    reserve: int  # the least it may be charged
    agent: str = ""  # whose leases it spares, and whose bids do not lift its price
    is_lease: bool = False
    urgent: bool = False

    @property
    def key(self) -> int:
        return self.price * self.weight

    @property
    def rank(self) -> tuple[int, int, str]:
        """Smaller goes first. Total: ids are unique, so input order never matters."""
        return (-self.key, self.tie, self.id)

    def price_ahead_of(self, other: Contestant) -> int:
        """The least price with which this one would rank before `other`."""
        price, remainder = divmod(other.key, self.weight)
        wins_ties = (self.tie, self.id) < (other.tie, other.id)
        return price if remainder == 0 and wins_ties else price + 1

    def is_of_agent(self, other: Contestant) -> bool:
        return bool(self.agent) and self.agent == other.agent

    def spares(self, lease: Contestant) -> bool:
        """
        Return True if this bid may not displace the lease: it is of its own agent, and no less
        urgent.
        """
        return self.is_of_agent(lease) and self.urgent <= lease.urgent
