"""The claims of `bench nodes` are decided, all of them, on devices that are nobody else's."""

from __future__ import annotations

from bidplane.bench import nodes
from bidplane.bench.support import simulated_nodes
from bidplane.core.devices.claims.fast import Placed
from bidplane.core.devices.claims.model import read_claim


def test_each_claim_has_devices_of_its_own() -> None:
    fleet = nodes._fleet(nodes._slices(4))
    allocated: list[tuple[str, str]] = []
    for at in range(16):
        placed = fleet.place([read_claim(nodes._claim(at))])
        assert isinstance(placed, Placed)
        results = placed.allocations[0]["devices"]["results"]
        assert len(results) == (4 if at % 4 == 3 else 1)
        allocated += ((result["pool"], result["device"]) for result in results)
    assert len(allocated) == len(set(allocated)) == 28


def test_a_simulated_node_is_small() -> None:
    assert simulated_nodes.resident_bytes() > 1 << 20
    assert nodes._memory(200) < 1000
