"""The facts that a survey reads from a cluster, and the findings that checks make of them."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

import msgspec

from bidplane.api.kinds import Object


class Level(enum.StrEnum):
    OK = "ok"
    NOTE = "note"  # it works, with a restriction
    PROBLEM = "problem"  # something will not work, or not safely


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a diagnosis."""

    check: str
    level: Level
    fact: str
    cost: str = ""  # what does not work, or works worse
    command: str = ""  # that mends it


class Right(msgspec.Struct, frozen=True, order=True):
    """The right to one verb on one resource of every namespace, as RBAC writes it."""

    verb: str
    group: str
    resource: str  # "pods", or "resourceclaims/status"

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}{'.' + self.group if self.group else ''}"


class DryRun(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to an object that was sent with dryRun=All; nothing was stored."""

    sent: Object
    stored: Object | None  # as the API server would store it; None if it refused
    refusal: str = ""


class ClusterFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of one cluster. Resources that may not be listed are in `unread`."""

    version: str  # as /version has it: v1.37.1
    served: frozenset[str]  # "resource.k8s.io/v1/resourceslices"
    denied: Sequence[Right] = ()  # of the rights that are needed
    unread: Mapping[str, str] = {}  # by resource: why it could not be listed
    nodes: Sequence[Object] = ()
    pods: Sequence[Object] = ()
    namespaces: Sequence[Object] = ()
    slices: Sequence[Object] = ()
    claims: Sequence[Object] = ()
    device_classes: Sequence[Object] = ()
    definitions: Sequence[Object] = ()  # CustomResourceDefinitions
    webhooks: Sequence[Object] = ()  # MutatingWebhookConfigurations and validating ones
    claim: DryRun | None = None  # a claim that uses every feature that needs a gate
    pod: DryRun | None = None  # a pod as a lease's
    clock_behind: float | None = None  # seconds by which the API server's clock is behind ours
    metrics_age: float | None = None  # seconds since the newest DCGM series; None: none was found
    metrics_by_pod: int = 0  # DCGM series that name a pod
    prometheus: str = ""  # the address that was asked; "" if none
