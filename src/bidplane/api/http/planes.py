"""The answers about planes over HTTP (`/bidplane/v1/planes/…`), for owners."""

from __future__ import annotations

import msgspec

from bidplane.api.agent import PlaneLimits


class PlaneSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One plane in the list of all."""

    name: str
    agent: bool  # an agent's; else it is the host's, or was created by itself
    awake: bool
    bytes: int  # of its file


class PlaneUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a plane, and the most it may hold."""

    usage: PlaneLimits = PlaneLimits()
    limits: PlaneLimits | None = None  # None: it has no limits


class QuarantineRelease(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a plane's quarantine."""

    released: int  # kinds of work
