"""
An action: one change of the fleet that the gate judges, whoever asks for it.

Every action names its target by kind; `value` is what the target is to have. Actions that this
version cannot carry out are not in `ActionKind`, so that a Proposal of one is refused by name.
"""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec

_MOST_NAME = 253


class ActionKind(enum.StrEnum):
    EVICT_POD = "EvictPod"  # of the host, with its grace period
    RELEASE_LEASE = "ReleaseLease"  # gives back what an agent leases
    CORDON_NODE = "CordonNode"  # nothing new is sold there; what runs goes on
    PARK_NODE = "ParkNode"  # the same, of a node that nobody uses or waits for
    RETURN_NODE = "ReturnNode"  # ends both
    SET_FLOOR_PRICE = "SetFloorPrice"  # of a pool, credits per GPU-hour
    SET_IDLE_WINDOW = "SetIdleWindow"  # of a pool, seconds
    SET_REFILL = "SetRefill"  # of an agent, credits per hour before priority
    SET_PRIORITY = "SetPriority"  # of an agent; it multiplies the refill
    SCALE_ENDPOINT = "ScaleEndpoint"  # the replicas that it has while it is awake
    PREWARM_ENDPOINT = "PrewarmEndpoint"  # wakes it before a request comes
    SLEEP_ENDPOINT = "SleepEndpoint"  # before its window ends
    RETRY_ROLLOUT = "RetryRollout"  # of an Endpoint whose pods fail: they are made anew
    CONSOLIDATE_NODE = "ConsolidateNode"  # moves the movable leases away, and cordons it
    SNAPSHOT_PLANE = "SnapshotPlane"  # of an agent, into the data folder
    PAGE_PERSON = "PagePerson"
    REPAIR_DRIFT = "RepairDrift"  # sets one field of an object to what was declared
    OFF_TOPIC = "OffTopic"  # what a model answered instead of an action; recorded, and refused


Text = Annotated[str, msgspec.Meta(extra_json_schema={"maxLength": _MOST_NAME})]


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """One intended change. `core.gate.actions` checks that the fields are those of the kind."""

    kind: ActionKind
    name: Text  # of the target
    namespace: Text = ""  # of a pod, lease or Endpoint
    uid: Text = ""  # of these: a successor of the same name is not meant
    value: Text = ""

    def __str__(self) -> str:
        target = f"{self.namespace}/{self.name}" if self.namespace else self.name
        return f"{self.kind} {target}" + (f" to {self.value}" if self.value else "")


class Effect(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The part of the fleet that an action touches."""

    devices: int = 0
    pods: int = 0
    agents: int = 0
    # Micro-credits per hour: by how much rents or refills may change.
    spend: int = 0

    def __add__(self, other: Effect) -> Effect:
        return Effect(
            devices=self.devices + other.devices,
            pods=self.pods + other.pods,
            agents=self.agents + other.agents,
            spend=self.spend + other.spend,
        )
