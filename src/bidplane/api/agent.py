"""`Agent`: who may bid, how well it is funded, and where its plane is."""

from __future__ import annotations

import enum
import re
from typing import Annotated

import msgspec

# An agent's name is part of its plane's path, of its host namespace and of every host
# pod's labels, so it is a DNS label, shorter than one by the longest prefix we add.
NAME_PATTERN = r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?"
RESERVED_NAMES = frozenset({"host", "kube", "system", "default", "bidplane"})

DEFAULT_MAX_PRICE = "1.00"


class Driver(enum.StrEnum):
    """Who makes the agent's plane."""

    EMBEDDED = "embedded"  # in the server, one file each


class RestartClass(enum.StrEnum):
    LIGHT = "light"  # the pool's restartSeconds
    HEAVY = "heavy"  # the pool's heavyRestartSeconds


class Strategy(enum.StrEnum):
    """How pods bid that name no price; `core/market/strategy` says what each does."""

    MANUAL = "manual"
    STEADY = "steady"
    THRIFTY = "thrifty"
    DEADLINE = "deadline"
    PACED = "paced"


class AgentSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    owner: str  # who answers for it; caps and compensation are counted per owner
    team: str = ""
    priority: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1  # multiplies the refill
    refill: str = "0"  # credits granted each hour, before priority
    carry_over: str = ""  # most the refill may let the wallet hold; "" is twice one refill
    max_price: str = DEFAULT_MAX_PRICE  # for pods that name no price of their own
    driver: Driver = Driver.EMBEDDED
    # Keeps everything and spends nothing: no bids, and what it leases is given back.
    suspended: bool = False
    # Its pods may reach the machine they run on: hostPath, hostNetwork, privileged, …
    trusted: bool = False
    strategy: Strategy = Strategy.MANUAL  # how those bid, round after round
    # Its running leases may be moved to other devices of their lot, with notice and compensation,
    # to make room for a block that somebody pays for.
    movable: bool = False
    # What a restart costs its work: `heavy` ranks higher once it runs, and pays more levy.
    restart_class: RestartClass = RestartClass.LIGHT


class AgentStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    phase: str = "Pending"  # Pending | Ready | Suspended | Deleting
    plane: str = ""  # its address, https://HOST:PORT/planes/NAME
    message: str = ""


def name_problem(name: str) -> str | None:
    """Why `name` cannot be an agent's name, or None."""
    if name in RESERVED_NAMES:
        return f"{name!r} is reserved; choose another name"
    if re.fullmatch(NAME_PATTERN, name) is None:
        return (
            f"{name!r} is not a name for an agent: use 1 to 40 lower-case letters, digits and"
            " '-', starting with a letter and not ending with '-', for example 'trainer-2'"
        )
    return None


def host_namespace(agent: str) -> str:
    """Where an agent's pods, bids and leases live on the host."""
    return f"agent-{agent}"
