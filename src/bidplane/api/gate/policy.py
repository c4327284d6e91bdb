"""
`Policy`: the changes that are allowed, their limits, and who must approve.

All Policies hold together. A change needs a rule that allows it; a denial, a protection, a freeze
or a limit of any Policy wins over it. What is in no rule is denied, and what cannot be evaluated
is denied.
"""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec


class ActorRole(enum.StrEnum):
    """The roles of those who ask for changes."""

    OWNER = "owner"  # of the installation: may do everything else, too
    OPERATOR = "operator"
    APPROVER = "approver"
    FINANCE = "finance"
    PILOT = "pilot"
    NONE = "none"  # a credential without a role here, such as a service account's


class Ruling(enum.StrEnum):
    """The result of a rule whose condition holds."""

    ALLOW = "Allow"
    DENY = "Deny"
    APPROVE = "RequireApproval"


_DAY_SECONDS = 86_400
_UNLIMITED = 1_000_000_000
_MOST_ITEMS = 64

Condition = Annotated[str, msgspec.Meta(extra_json_schema={"maxLength": 4096})]
Name = Annotated[str, msgspec.Meta(extra_json_schema={"maxLength": 63})]
Count = Annotated[int, msgspec.Meta(ge=0, le=_UNLIMITED)]


class PolicyRule(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    name: Name
    when: Condition  # CEL over actor, action, target, effect, fleet, time
    ruling: Ruling
    message: Annotated[str, msgspec.Meta(extra_json_schema={"maxLength": 512})] = ""
    # With RequireApproval: how many people, of which roles, and for how long it counts.
    approvals: Annotated[int, msgspec.Meta(ge=1, le=2)] = 1
    approvers: Annotated[list[ActorRole], msgspec.Meta(max_length=4)] = msgspec.field(
        default_factory=lambda: [ActorRole.OWNER, ActorRole.APPROVER]
    )
    expire_seconds: Annotated[int, msgspec.Meta(ge=1, le=7 * _DAY_SECONDS)] = 3600


class PolicyLimit(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The most that all changes of a window may touch together, in any Policy's name."""

    name: Name
    window_seconds: Annotated[int, msgspec.Meta(ge=1, le=_DAY_SECONDS)] = 3600
    # Whose changes are counted and limited; everybody's by default.
    roles: Annotated[list[ActorRole], msgspec.Meta(max_length=8)] = []
    spend: str = ""  # credits per hour; "" is no limit
    devices: Count = _UNLIMITED
    pods: Count = _UNLIMITED
    agents: Count = _UNLIMITED


class Protection(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Targets that nobody changes, approved or not."""

    name: Name
    when: Condition
    message: Annotated[str, msgspec.Meta(extra_json_schema={"maxLength": 512})] = ""


class Freeze(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A time in which nothing is changed: between two moments, each week, or both."""

    name: Name
    when: Condition  # CEL over the same variables; mostly over `time`
    message: Annotated[str, msgspec.Meta(extra_json_schema={"maxLength": 512})] = ""


class PolicySpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    rules: Annotated[list[PolicyRule], msgspec.Meta(max_length=_MOST_ITEMS)] = []
    limits: Annotated[list[PolicyLimit], msgspec.Meta(max_length=_MOST_ITEMS)] = []
    protections: Annotated[list[Protection], msgspec.Meta(max_length=_MOST_ITEMS)] = []
    freezes: Annotated[list[Freeze], msgspec.Meta(max_length=_MOST_ITEMS)] = []


class PolicyStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    message: str = ""
