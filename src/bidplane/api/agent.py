"""`Agent`: who may bid, how well it is funded, and where its plane is."""

from __future__ import annotations

import enum
import re
from typing import Annotated, Any, ClassVar

import msgspec

from bidplane.api.money import LARGEST_AMOUNT, MICRO, format_credits, parse_amount

# An agent's name is part of its plane's path, of its host namespace and of every host
# pod's labels, so it is a DNS label, shorter than one by the longest prefix we add.
NAME_PATTERN = r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?"
RESERVED_NAMES = frozenset({"host", "kube", "system", "default", "bidplane"})


class Driver(enum.StrEnum):
    """The part of the program that makes the agent's plane."""

    EMBEDDED = "embedded"  # in the server, one file each


class RestartClass(enum.StrEnum):
    LIGHT = "light"  # the pool's restartSeconds
    HEAVY = "heavy"  # the pool's heavyRestartSeconds


class Strategy(enum.StrEnum):
    """The ways in which pods bid that name no price; `core/bidding/strategy` implements them."""

    MANUAL = "manual"
    STEADY = "steady"
    THRIFTY = "thrifty"
    DEADLINE = "deadline"
    PACED = "paced"


# For whoever serves the schema, the same as `hourly_grant` and `carry_over`. What is no amount at
# all is named by admission.
_IS_AMOUNT = "self.{0}.matches('^[0-9]{{1,12}}([.][0-9]{{1,6}})?$')"
_LARGEST = LARGEST_AMOUNT // MICRO
HIGHEST_PRIORITY = 10
_RULES: list[dict[str, Any]] = [
    {
        "rule": f"self.priority <= {HIGHEST_PRIORITY}",
        "message": f"priority is from 1 to {HIGHEST_PRIORITY}",
    },
    {
        "rule": f"!has(self.refill) || !{_IS_AMOUNT.format('refill')}"
        f" || double(self.refill) * double(self.priority) <= {_LARGEST}.0",
        "message": "refill × priority is too much: the largest hourly grant is"
        f" {format_credits(LARGEST_AMOUNT)} credits",
    },
    {
        "rule": f"!has(self.carryOver) || !{_IS_AMOUNT.format('carryOver')}"
        f" || double(self.carryOver) <= {_LARGEST}.0",
        "message": "carryOver is too much: the largest amount in a wallet is"
        f" {format_credits(LARGEST_AMOUNT)} credits",
    },
]
Amount = Annotated[str, msgspec.Meta(extra_json_schema={"maxLength": 64})]


HostPattern = Annotated[
    str,
    msgspec.Meta(
        extra_json_schema={
            "pattern": "^([*][.])?[a-z0-9]([-a-z0-9.]{0,250}[a-z0-9])?$",
            "maxLength": 253,
        }
    ),
]


MAX_BIDS = 1000  # that stand, of one agent


class PlaneLimits(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The most that an agent's plane may hold; 0 is the installation's default."""

    objects: Annotated[int, msgspec.Meta(ge=0, le=10_000_000)] = 0
    bytes: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)] = 0  # of all objects, as JSON
    disk: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)] = 0  # bytes of the plane's file
    pods: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    definitions: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 0  # CustomResourceDefinitions

    def over(self, default: PlaneLimits) -> PlaneLimits:
        """Return these limits, and those of `default` where none is set here."""
        ours, defaults = msgspec.structs.asdict(self), msgspec.structs.asdict(default)
        return PlaneLimits(**{name: value or defaults[name] for name, value in ours.items()})


DEFAULT_LIMITS = PlaneLimits(
    objects=50_000, bytes=256 << 20, disk=1 << 30, pods=1000, definitions=200
)


class AgentSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    VALIDATIONS: ClassVar[list[dict[str, Any]]] = _RULES

    owner: str  # who answers for it; caps and compensation are counted per owner
    team: str = ""
    # 1 to 10: multiplies refill and default price. Agents of older versions may have up to 1000.
    priority: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1
    # Credits granted each hour, before priority. "" is its share, by priority, of the list price of
    # an hour of all GPUs for sale.
    refill: Amount = ""
    carry_over: Amount = ""  # most the refill may let the wallet hold; "" is twice one refill
    # For bids that name no price. "" offers `priority` times the pool's list price.
    max_price: str = ""
    # Bids that may stand at once; newer ones wait, with the reason TooManyBids.
    max_bids: Annotated[int, msgspec.Meta(ge=1, le=1000)] = MAX_BIDS
    driver: Driver = Driver.EMBEDDED
    # Keeps everything and spends nothing: no bids, and what it leases is given back.
    suspended: bool = False
    # Its pods may reach the machine they run on: hostPath, hostNetwork, privileged, …
    trusted: bool = False
    strategy: Strategy = Strategy.MANUAL  # how those bid, round after round
    # Its running leases may be moved to other devices of their lot, with notice and compensation,
    # to make room for a block that somebody pays for.
    movable: bool = False
    limits: PlaneLimits = PlaneLimits()  # of its plane
    # Host names that its Endpoints may claim: `a.example`, or `*.example` for every name below.
    # None is `*.NAME.DOMAIN`, with the installation's domain.
    hosts: Annotated[tuple[HostPattern, ...], msgspec.Meta(max_length=64)] = ()
    # What a restart costs its work: `heavy` ranks higher once it runs, and pays more levy.
    restart_class: RestartClass = RestartClass.LIGHT


class AgentStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    phase: str = "Pending"  # Pending | Ready | Suspended | Deleting
    plane: str = ""  # its address, https://HOST:PORT/planes/NAME
    message: str = ""


def hourly_grant(refill: str, priority: int) -> int:
    """
    Return the micro-credits granted each hour by an explicit refill; 0 for "", whose amount depends
    on the fleet. Raises ValueError if that is too much.
    """
    granted = parse_amount(refill) * priority if refill else 0
    if granted > LARGEST_AMOUNT:
        raise ValueError(
            f"{refill} × priority {priority} is {format_credits(granted)} credits an hour:"
            f" the largest hourly grant is {format_credits(LARGEST_AMOUNT)}"
        )
    return granted


def carry_over_cap(carry_over: str, granted: int) -> int:
    """Return the balance at which refills stop: what the Agent says, or two hourly grants."""
    return parse_amount(carry_over) if carry_over else default_carry_over(granted)


def default_carry_over(granted: int) -> int:
    """Return the balance at which refills stop if the Agent names none: two hourly grants."""
    return min(2 * granted, LARGEST_AMOUNT)


def name_problem(name: str) -> str | None:
    """The reason that `name` cannot be an agent's name; None if it can."""
    if name in RESERVED_NAMES:
        return f"{name!r} is reserved; choose another name"
    if re.fullmatch(NAME_PATTERN, name) is None:
        return (
            f"{name!r} is not a name for an agent: use 1 to 40 lower-case letters, digits and"
            " '-', starting with a letter and not ending with '-', for example 'trainer-2'"
        )
    return None


def host_namespace(agent: str) -> str:
    """The namespace of an agent's pods, bids and leases on the host."""
    return f"agent-{agent}"
