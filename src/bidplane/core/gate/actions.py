"""Actions: which fields each kind has, its digest, and the action that takes it back."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable

import msgspec

from bidplane.api.agent import hourly_grant
from bidplane.api.gate.action import Action, ActionKind
from bidplane.api.money import format_credits, parse_credits, parse_price
from bidplane.core.gate.drift import parse_drift

_MOST_SECONDS = 86_400
_MOST_PRIORITY = 1000
_MOST_REPLICAS = 100
_MOST_TEXT = 253
_WHOLE = re.compile(r"0|[1-9][0-9]{0,8}")

# How certain a pre-warming is: a Policy may allow the one, and have a person asked about the other.
SURE, UNSURE = "sure", "unsure"


class ActionShape(msgspec.Struct, frozen=True):
    """The fields that actions of a kind have beside the name."""

    target: str  # the kind of object
    namespaced: bool = False
    read_value: Callable[[str], str] | None = None  # into its one spelling; ValueError if it is bad


def _price(text: str) -> str:
    return format_credits(parse_price(text))


def _refill(text: str) -> str:
    hourly_grant(text, 1)
    return format_credits(parse_credits(text))


def _number(text: str, least: int, most: int) -> str:
    if not _WHOLE.fullmatch(text) or not least <= int(text) <= most:
        raise ValueError(f"{text!r} is not a whole number from {least} to {most}")
    return text


def _certainty(text: str) -> str:
    if text not in (SURE, UNSURE):
        raise ValueError(f"{text!r} is neither {SURE!r} nor {UNSURE!r}")
    return text


def _message(text: str) -> str:
    if not text or len(text) > _MOST_TEXT or not text.isprintable():
        raise ValueError(f"write 1 to {_MOST_TEXT} printable characters: what the person must know")
    return text


def _drift(text: str) -> str:
    return str(parse_drift(text))


SHAPES: dict[ActionKind, ActionShape] = {
    ActionKind.EVICT_POD: ActionShape("Pod", namespaced=True),
    ActionKind.RELEASE_LEASE: ActionShape("GPULease", namespaced=True),
    ActionKind.CORDON_NODE: ActionShape("Node"),
    ActionKind.PARK_NODE: ActionShape("Node"),
    ActionKind.RETURN_NODE: ActionShape("Node"),
    ActionKind.SET_FLOOR_PRICE: ActionShape("Pool", read_value=_price),
    ActionKind.SET_IDLE_WINDOW: ActionShape(
        "Pool", read_value=lambda text: _number(text, 0, _MOST_SECONDS)
    ),
    ActionKind.SET_REFILL: ActionShape("Agent", read_value=_refill),
    ActionKind.SET_PRIORITY: ActionShape(
        "Agent", read_value=lambda text: _number(text, 1, _MOST_PRIORITY)
    ),
    ActionKind.SCALE_ENDPOINT: ActionShape(
        "Endpoint", namespaced=True, read_value=lambda text: _number(text, 1, _MOST_REPLICAS)
    ),
    ActionKind.PREWARM_ENDPOINT: ActionShape("Endpoint", namespaced=True, read_value=_certainty),
    ActionKind.SLEEP_ENDPOINT: ActionShape("Endpoint", namespaced=True),
    ActionKind.RETRY_ROLLOUT: ActionShape("Endpoint", namespaced=True),
    ActionKind.CONSOLIDATE_NODE: ActionShape("Node"),
    ActionKind.SNAPSHOT_PLANE: ActionShape("Agent"),
    ActionKind.PAGE_PERSON: ActionShape("person", read_value=_message),
    ActionKind.REPAIR_DRIFT: ActionShape("object", read_value=_drift),
    ActionKind.OFF_TOPIC: ActionShape("answer", read_value=str),
}


def action_problem(action: Action) -> str:
    """Return what is wrong with the action's fields, and how to fix it; "" if nothing is."""
    shape = SHAPES[action.kind]
    if not action.name:
        return f"{action.kind}: name the {shape.target} (action.name)"
    if shape.namespaced and not (action.namespace and action.uid):
        return (
            f"{action.kind}: give the {shape.target}'s namespace and uid (action.namespace,"
            " action.uid), so that a successor of the same name is not meant"
        )
    if not shape.namespaced and (action.namespace or action.uid):
        return f"{action.kind}: a {shape.target} is named by its name alone"
    if shape.read_value is None:
        return f"{action.kind} takes no value (action.value)" if action.value else ""
    try:
        normal = shape.read_value(action.value)
    except ValueError as error:
        return f"{action.kind}: action.value: {error}"
    if normal != action.value:
        return f"{action.kind}: write action.value as {normal!r}, not {action.value!r}"
    return ""


def normal_value(kind: ActionKind, text: str) -> str:
    """Return a value in its one spelling; raise ValueError if the kind cannot have it."""
    read = SHAPES[kind].read_value
    return read(text) if read is not None else text


def action_digest(action: Action) -> str:
    """Return the hash that an approval names: another action, however alike, has another."""
    return hashlib.sha256(msgspec.json.encode(action, order="deterministic")).hexdigest()


def undo_of(action: Action, before: str) -> Action | None:
    """
    Return the action that takes this one back; None of what cannot be taken back. `before` is the
    value that the target has now.
    """
    match action.kind:
        case ActionKind.CORDON_NODE | ActionKind.PARK_NODE | ActionKind.CONSOLIDATE_NODE:
            return Action(kind=ActionKind.RETURN_NODE, name=action.name)
        case ActionKind.PREWARM_ENDPOINT:
            sleep = ActionKind.SLEEP_ENDPOINT
            return msgspec.structs.replace(action, kind=sleep, value="")
        case ActionKind.SLEEP_ENDPOINT:
            wake = ActionKind.PREWARM_ENDPOINT
            return msgspec.structs.replace(action, kind=wake, value=SURE)
        case ActionKind.RETURN_NODE:
            return Action(kind=ActionKind.CORDON_NODE, name=action.name)
        case (
            ActionKind.EVICT_POD
            | ActionKind.RELEASE_LEASE
            | ActionKind.RETRY_ROLLOUT
            | ActionKind.SNAPSHOT_PLANE
            | ActionKind.PAGE_PERSON
            | ActionKind.OFF_TOPIC
        ):
            return None
        case _:
            return msgspec.structs.replace(action, value=before)
