"""
What a pod asks for, and at what price.

Reads the ways people already ask for GPUs, and our annotations. Anything that cannot be
read is a named problem with the field it is in, never a guess.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from bidplane.api import labels
from bidplane.api.agent import name_problem
from bidplane.api.bid import MOST_GPUS
from bidplane.api.kinds import AGENT, BID, POD, POOL, Kind, Object
from bidplane.api.money import parse_credits, parse_price
from bidplane.core import holds

_WHOLE = re.compile(r"[0-9]{1,9}")


class Ask(msgspec.Struct, frozen=True):
    gpus: int
    max_price: str  # "" takes the agent's
    pool: str


def ask_of(pod: Object) -> Ask:
    """The ask of an admitted pod; raises ValueError for one that was not admitted."""
    annotations = pod["metadata"].get("annotations") or {}
    return Ask(
        gpus=_gpus(pod["spec"]),
        max_price=annotations.get(labels.MAX_PRICE, ""),
        pool=annotations.get(labels.POOL, ""),
    )


def problems(kind: Kind, obj: Object) -> list[str]:
    """What is wrong with an object that asks or grants, one sentence each."""
    match kind:
        case _ if kind == POD:
            return list(_pod_problems(obj))
        case _ if kind == AGENT:
            return list(_agent_problems(obj))
        case _ if kind == BID:
            return [*_bid_problems(obj["spec"]), *_hold_problems(obj)]
        case _ if kind == POOL:
            return list(_bad_price("spec.floorPrice", obj["spec"].get("floorPrice", "")))
    return []


def _pod_problems(pod: Object) -> Iterator[str]:
    annotations = pod["metadata"].get("annotations") or {}
    price = annotations.get(labels.MAX_PRICE)
    if price is not None:
        yield from _bad_price(f"metadata.annotations[{labels.MAX_PRICE}]", price)
    try:
        _gpus(pod["spec"])
    except ValueError as error:
        yield str(error)


def _bid_problems(spec: Object) -> Iterator[str]:
    choices = spec.get("otherwise") or ()
    for field, choice in [("spec", spec)] + [
        (f"spec.otherwise[{index}]", choice) for index, choice in enumerate(choices)
    ]:
        if "maxPrice" in choice or field == "spec":
            yield from _bad_price(f"{field}.maxPrice", choice.get("maxPrice", ""))
        # The market can sell these; a lease that is one node cannot hold them yet.
        if choice.get("blocks", 1) > 1 or choice.get("spread"):
            yield (
                f"{field}: a lease is one node so far, so blocks and spread cannot be used:"
                " write one Bid for each block"
            )


def _hold_problems(bid: Object) -> Iterator[str]:
    text = (bid["metadata"].get("annotations") or {}).get(labels.HOLD_SECONDS)
    if text is not None and (problem := holds.problem(text)):
        yield problem


def _agent_problems(agent: Object) -> Iterator[str]:
    problem = name_problem(agent["metadata"].get("name", ""))
    if problem:
        yield f"metadata.name: {problem}"
    spec = agent["spec"]
    for field in ("refill", "carryOver"):
        if spec.get(field):
            try:
                parse_credits(spec[field])
            except ValueError as error:
                yield f"spec.{field}: {error}"
    if spec.get("maxPrice"):
        yield from _bad_price("spec.maxPrice", spec["maxPrice"])


def _bad_price(field: str, text: str) -> Iterator[str]:
    try:
        parse_price(text)
    except ValueError as error:
        yield f"{field}: {error}"


def _gpus(spec: Object) -> int:
    """
    The GPUs a pod needs at once.

    Init containers run one after the other before the rest; those that restart always
    (sidecars) stay beside whatever comes after them.
    """
    staying, most = 0, 0
    for i, container in _each(spec, "initContainers"):
        count = _limit(f"spec.initContainers[{i}]", container)
        most = max(most, staying + count)
        if container.get("restartPolicy") == "Always":
            staying += count
    for i, container in _each(spec, "containers"):
        staying += _limit(f"spec.containers[{i}]", container)
    most = max(most, staying)
    if most > MOST_GPUS:
        raise ValueError(f"spec: the pod asks for {most} GPUs; the most is {MOST_GPUS}")
    return most


def _each(spec: Object, field: str) -> Iterator[tuple[int, Any]]:
    return enumerate(spec.get(field) or ())


def _limit(path: str, container: Object) -> int:
    resources = container.get("resources") or {}
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    value = limits.get(labels.GPU_RESOURCE, requests.get(labels.GPU_RESOURCE, "0"))
    field = f"{path}.resources.limits[{labels.GPU_RESOURCE}]"
    if not _WHOLE.fullmatch(str(value)):
        raise ValueError(f"{field}: {value!r} is not a whole number of GPUs")
    return int(value)
