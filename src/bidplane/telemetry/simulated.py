"""
What a simulated GPU would show: a function of what it runs and the time, so that two who
ask in the same second are told the same, and a restart changes nothing.
"""

from __future__ import annotations

import hashlib

from bidplane.telemetry.model import Counters, Holder

_IDLE_WATTS, _BUSY_WATTS = 70.0, 650.0
_CONTEXT_BYTES = 512 << 20  # what a driver keeps for itself
_LINK_BYTES_PER_SECOND = 2e9 * 16  # of sixteen lanes, generation 4
_LINK_LOAD = 0.2  # of what the link could carry, on a GPU that is always busy


def simulated(
    *,
    node: str,
    index: int,
    uuid: str,
    product: str,
    memory_bytes: int,
    now: float,
    holder: Holder | None = None,
    busy_percent: float = 85.0,
    memory_percent: float = 60.0,
    link_width: int = 16,
    link_width_max: int = 16,
    link_generation: int = 4,
    xid: int = 0,
) -> Counters:
    """`busy_percent` and `memory_percent` are what its pod asks to be shown, when it has one."""
    sway = _sway(f"{uuid}/{int(now)}")
    load = min(100.0, max(0.0, busy_percent * (0.95 + 0.1 * sway))) if holder else 0.0
    used = int(memory_bytes * min(memory_percent, 100.0) / 100) if holder else 0
    used = min(memory_bytes, max(used, _CONTEXT_BYTES))
    traffic = _LINK_BYTES_PER_SECOND * link_width / 16 * load / 100 * _LINK_LOAD
    return Counters(
        node=node,
        index=index,
        uuid=uuid,
        product=product,
        utilisation_percent=round(load),
        memory_used_bytes=used,
        memory_free_bytes=memory_bytes - used,
        power_watts=round(_IDLE_WATTS + (_BUSY_WATTS - _IDLE_WATTS) * load / 100, 1),
        temperature_celsius=round(30 + 45 * load / 100),
        pcie_tx_bytes_per_second=round(traffic * sway),
        pcie_rx_bytes_per_second=round(traffic),
        pcie_link_width=link_width,
        pcie_link_width_max=link_width_max,
        pcie_link_generation=link_generation,
        xid=xid,
        holder=holder,
    )


def _sway(seed: str) -> float:
    """A number from 0 to 1 that looks like chance and is none."""
    return int.from_bytes(hashlib.blake2b(seed.encode(), digest_size=4).digest(), "big") / 2**32
