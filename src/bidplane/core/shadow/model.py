"""The recording of a cluster: what was asked for, held and used in a window of time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

FORMAT: Literal["bidplane-shadow-1"] = "bidplane-shadow-1"
# What starts work again and again, or once, and then ends. Everything else is a service.
BATCH_KINDS = frozenset({"Job", "CronJob", "Pod", "PyTorchJob", "MPIJob", "TFJob", "JobSet"})


class ShadowPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that asked for GPUs. Times are seconds since the epoch."""

    namespace: str
    name: str
    owner: str  # kind and name of what made it: Deployment/chat, Job/train, Pod/notebook
    gpus: int
    created: float
    scheduled: float | None = None  # None: never
    ended: float | None = None  # None: it is there when the window ends

    @property
    def is_service(self) -> bool:
        return self.owner.partition("/")[0] not in BATCH_KINDS


class NodeGpus(msgspec.Struct, frozen=True):
    """The GPUs that a node offers to pods."""

    name: str
    gpus: int


class UseStretch(msgspec.Struct, frozen=True, array_like=True):
    """A time in which a device was busy throughout, or idle throughout."""

    begin: float
    end: float
    idle: bool


class DeviceUse(msgspec.Struct, frozen=True, kw_only=True):
    """The measured time of one device under one pod's name, in the order of time."""

    namespace: str
    pod: str
    device: str
    stretches: Sequence[UseStretch]


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """A source that is missing, and what is unknown without it."""

    source: str  # a series, or a resource of the API
    cost: str


class ClusterRecording(msgspec.Struct, frozen=True, kw_only=True):
    """A window of a cluster's life. `bidplane sim --trace` replays it."""

    format: Literal["bidplane-shadow-1"] = FORMAT  # first: the file is known by it
    source: str
    begin: float
    end: float
    step: int  # seconds of one measurement
    nodes: Sequence[NodeGpus] = ()
    pods: Sequence[ShadowPod] = ()
    uses: Sequence[DeviceUse] = ()
    gaps: Sequence[Gap] = ()
    waits_known: bool = True  # False: when pods were scheduled is unknown

    @property
    def gpus(self) -> int:
        return sum(node.gpus for node in self.nodes)
