"""What a reader gives: jobs, and the fleet they ran on if the trace says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bidplane.sim.workload import Job


class Trace(NamedTuple):
    jobs: Sequence[Job]  # in the order of arrival
    what: str  # in a few words
    nodes: tuple[int, ...] = ()  # GPUs of each, if it says
    kinds: tuple[str, ...] = ()  # and their kinds
