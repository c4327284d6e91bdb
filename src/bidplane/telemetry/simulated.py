"""
The counters of a simulated GPU: a function of its load and the time, so that two readers in the
same second get the same, and a restart changes nothing.
"""

from __future__ import annotations

import hashlib

import msgspec

from bidplane.telemetry.model import Counters, Holder, ProcessMemory

_IDLE_WATTS, _BUSY_WATTS = 70.0, 650.0
CONTEXT_BYTES = 512 << 20  # what a driver keeps for itself
_LINK_BYTES_PER_SECOND = 2e9 * 16  # of sixteen lanes, generation 4
_LINK_LOAD = 0.2  # of what the link could carry, on a GPU that is always busy


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The pod that a device works for, and how hard; idle without a holder."""

    holder: Holder | None = None
    busy_percent: float = 85.0
    memory_percent: float = 60.0
    xid: int = 0
    pid: int = 1
    left_percent: float = 0.0  # of the memory, which an ended pod had and nobody has freed


_IDLE = Load()


def simulated_counters(
    *,
    node: str,
    index: int,
    uuid: str,
    product: str,
    memory_bytes: int,
    now: float,
    load: Load = _IDLE,
    profile: str = "",
    instance: str = "",
    is_cut: bool = False,
    link_width: int = 16,
    link_width_max: int = 16,
    link_generation: int = 4,
    xid: int = 0,
) -> Counters:
    """
    The counters of a GPU, or with a `profile` of a MIG instance. Drivers report no utilisation of
    a partitioned GPU, and of an instance only its memory and engine time.
    """
    variation = _variation(f"{uuid}/{instance}/{int(now)}")
    works = load.holder is not None or is_cut
    busy = load.busy_percent * (0.95 + 0.1 * variation) if works else 0.0
    busy = min(100.0, max(0.0, busy))
    percent = max(load.memory_percent if works else 0.0, load.left_percent)
    used = int(memory_bytes * min(percent, 100.0) / 100)
    used = min(memory_bytes, max(used, CONTEXT_BYTES))
    counters = Counters(
        node=node,
        index=index,
        uuid=uuid,
        product=product,
        memory_used_bytes=used,
        memory_free_bytes=memory_bytes - used,
        engine_percent=float(round(busy)),
        holder=load.holder,
        processes=(ProcessMemory(pid=load.pid, bytes=used),) if load.holder else (),
        xid=load.xid or xid,
    )
    if instance:
        return msgspec.structs.replace(counters, profile=profile, instance=instance)
    traffic = _LINK_BYTES_PER_SECOND * link_width / 16 * busy / 100 * _LINK_LOAD
    return msgspec.structs.replace(
        counters,
        utilisation_percent=None if is_cut else round(busy),
        power_watts=round(_IDLE_WATTS + (_BUSY_WATTS - _IDLE_WATTS) * busy / 100, 1),
        temperature_celsius=round(30 + 45 * busy / 100),
        pcie_tx_bytes_per_second=round(traffic * variation),
        pcie_rx_bytes_per_second=round(traffic),
        pcie_link_width=link_width,
        pcie_link_width_max=link_width_max,
        pcie_link_generation=link_generation,
    )


def _variation(seed: str) -> float:
    """A number from 0 to 1 that looks random but is a function of the seed."""
    return int.from_bytes(hashlib.blake2b(seed.encode(), digest_size=4).digest(), "big") / 2**32
