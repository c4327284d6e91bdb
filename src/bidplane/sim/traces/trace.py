"""The result of reading a trace: jobs, and the fleet they ran on if the trace has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bidplane.sim.workload import Job


class Trace(NamedTuple):
    """A workload, and the fleet it ran on if known."""

    jobs: Sequence[Job]  # in the order of arrival
    description: str  # one line for people
    nodes: tuple[int, ...] = ()  # the GPUs of each node, if the trace has them
    kinds: tuple[str, ...] = ()  # and their kinds
