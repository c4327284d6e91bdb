"""
The asks of pods: what a pod asks for, and at what price.

Reads the ways people already ask for GPUs, and our annotations. Anything that cannot be read is a
named problem with its field, never a guess.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from bidplane.api import labels
from bidplane.api.agent import name_problem
from bidplane.api.bid import BidSpec, shape_problems
from bidplane.api.kinds import AGENT, BID, POD, POOL, Kind, Object
from bidplane.api.money import parse_credits, parse_price
from bidplane.api.pool import Divides
from bidplane.api.reading import IdentityCache
from bidplane.api.shape import MOST_BLOCKS, MOST_GPUS, parse_fraction
from bidplane.api.times import parse_rfc3339
from bidplane.core.bidding import annotations as annotations_of
from bidplane.core.hosting import references
from bidplane.core.leases import holders

# Fields of a Bid for GPUs anywhere in one machine, the best linked ones first.
IN_ONE_MACHINE: dict[str, Any] = {"oneNode": True, "spread": True}
WORK_SECONDS = 3600  # how long a pod runs if it does not say
_WHOLE = re.compile(r"[0-9]{1,9}")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,48}[a-z0-9])?")


class PodAsk(msgspec.Struct, frozen=True):
    """A pod's request to the market: its GPUs and the terms of its bid."""

    gpus: int  # whole ones; or 1, of a share
    max_price: str  # "" takes the agent's
    pool: str
    share: str = ""  # a part of one GPU: "0.3", or a MIG profile
    memory: int = 0  # or so many MiB of one, whatever part that is of it
    gang: str = ""  # the pods of one gang are bid for, won and bound together
    gang_size: int = 1
    bid: str = ""  # a Bid written by hand, of which this pod uses what it won
    deadline: str = ""  # RFC 3339; "" is none
    work_seconds: int = 0  # 0: it does not say
    term_seconds: int = 0  # no bid may displace it for so long
    urgent: bool = False  # it asks for a round at once
    budget: str = ""  # credits that its work may cost in all; "" is no limit
    instant: str = ""  # "true", "false"; "" leaves it to the strategy
    one_link: bool = False  # all its GPUs in one link domain, not only in one machine


def ask_of(pod: Object) -> PodAsk:
    """Return the ask of an admitted pod; raises ValueError for one that was not admitted."""
    # A pod that is being written may still change; one that the server returned does not.
    return _cached_ask(pod) if pod["metadata"].get("resourceVersion") else _read_ask(pod)


def _read_ask(pod: Object) -> PodAsk:
    """Read the ask of a pod; raises ValueError for what admission refuses."""
    annotations = pod["metadata"].get("annotations") or {}
    gpus, share, memory = _read_gpus(pod)
    gang = annotations.get(labels.GANG, "")
    if gang and not _NAME.fullmatch(gang):
        raise ValueError(
            f"metadata.annotations[{labels.GANG}]: {gang!r} is not a name: use up to 50 lower-case"
            " letters, digits and '-'"
        )
    if not gang and labels.GANG_SIZE in annotations and not pod["metadata"].get("ownerReferences"):
        raise ValueError(
            f"metadata.annotations[{labels.GANG_SIZE}]: the pod has no controller, so its gang"
            f" needs a name: set {labels.GANG} too"
        )
    if gang and memory:
        raise ValueError(
            f"metadata.annotations[{labels.GPU_MEMORY}]: a gang is of equal parts: set"
            f" {labels.GPU_FRACTION} instead"
        )
    return PodAsk(
        gpus=gpus,
        max_price=annotations.get(labels.MAX_PRICE, ""),
        pool=annotations.get(labels.POOL, ""),
        share=share,
        memory=memory,
        gang=gang,
        gang_size=_gang_size(annotations) if gang or labels.GANG_SIZE in annotations else 1,
        bid=annotations.get(labels.BID_NAME, ""),
        deadline=_deadline(annotations),
        work_seconds=_work_seconds(annotations),
        term_seconds=_term_seconds(annotations),
        urgent=annotations.get(labels.URGENCY) == "high",
        budget=annotations.get(labels.BUDGET, ""),
        instant=annotations.get(labels.INSTANT, ""),
        one_link=annotations.get(labels.LINK) == "domain",
    )


# A scheduler reads the asks of all waiting pods at every change.
_cached_ask = IdentityCache(_read_ask)


def _deadline(annotations: Object) -> str:
    """Return the deadline as written; "" for one that `annotations` has refused already."""
    text: str = annotations.get(labels.DEADLINE, "")
    try:
        parse_rfc3339(text)
    except ValueError:
        return ""
    return text


def _term_seconds(annotations: Object) -> int:
    """Return the seconds for which no bid may displace the pod: its term, or its whole run."""
    text = annotations.get(labels.TERM, "")
    if _WHOLE.fullmatch(text):
        return int(text)
    is_protected = annotations.get(labels.PREEMPTIBLE) == "false"
    return (_work_seconds(annotations) or WORK_SECONDS) if is_protected else 0


def _work_seconds(annotations: Object) -> int:
    """Return the seconds of work that the pod announces; raises ValueError."""
    text = annotations.get(labels.WORK_SECONDS, "0")
    if not _WHOLE.fullmatch(text):
        raise ValueError(
            f"metadata.annotations[{labels.WORK_SECONDS}]: {text!r} is not a number of seconds"
        )
    return int(text)


def _gang_size(annotations: Object) -> int:
    """Return the number of pods of the gang; raises ValueError."""
    text = annotations.get(labels.GANG_SIZE, "")
    size = int(text) if _WHOLE.fullmatch(text) else 0
    if not 1 <= size <= MOST_BLOCKS:
        raise ValueError(
            f"metadata.annotations[{labels.GANG_SIZE}]: {text!r} is not the number of pods of the"
            f" gang: write 1 to {MOST_BLOCKS}"
        )
    return size


def _read_gpus(pod: Object) -> tuple[int, str, int]:
    """
    Return the whole GPUs, the share, or the MiB that a pod asks for; one of the three.

    A share or an amount of memory is asked for by KAI's annotations or by MIG's resource.
    """
    annotations = pod["metadata"].get("annotations") or {}
    whole_gpus = _peak_count(pod["spec"], labels.GPU_RESOURCE)
    parts = {
        name.removeprefix(labels.MIG_PREFIX): count
        for name in sorted(_resources(pod["spec"], labels.MIG_PREFIX))
        if (count := _peak_count(pod["spec"], name))
    }
    fraction, memory = annotations.get(labels.GPU_FRACTION), annotations.get(labels.GPU_MEMORY)
    ways_used = (bool(whole_gpus), bool(parts), fraction is not None, memory is not None)
    if sum(ways_used) > 1 or len(parts) > 1:
        raise ValueError(
            "spec: the pod asks for GPUs in more than one way: a lease is whole GPUs, or one"
            " part of a GPU; use a pod for each"
        )
    if annotations.get(labels.GPU_FRACTION_DEVICES, "1") != "1":
        raise ValueError(
            f"metadata.annotations[{labels.GPU_FRACTION_DEVICES}]: one part of one GPU is sold to a"
            " pod: remove it, and use a pod for each part, or ask for whole GPUs"
        )
    if memory is not None:
        if not _WHOLE.fullmatch(memory) or not int(memory):
            raise ValueError(
                f"metadata.annotations[{labels.GPU_MEMORY}]: {memory!r} is not a number of MiB,"
                ' such as "2000"'
            )
        return 1, "", int(memory)
    if fraction is not None:
        try:
            return 1, parse_fraction(fraction), 0
        except ValueError as error:
            raise ValueError(f"metadata.annotations[{labels.GPU_FRACTION}]: {error}") from None
    for profile, count in parts.items():
        if count > 1:
            raise ValueError(
                f"spec: the pod asks for {count} × {profile}; one part of a GPU is sold to a pod:"
                " ask for a larger profile, or use a pod for each"
            )
        return 1, profile, 0
    return whole_gpus, "", 0


def problems(kind: Kind, obj: Object) -> list[str]:
    """Return a sentence for each problem of a Pod, Agent, Bid or Pool."""
    match kind:
        case _ if kind == POD:
            return list(_pod_problems(obj))
        case _ if kind == AGENT:
            return list(_agent_problems(obj))
        case _ if kind == BID:
            return [*_bid_problems(obj["spec"]), *_hold_problems(obj)]
        case _ if kind == POOL:
            return list(_pool_problems(obj["spec"]))
    return []


def _pod_problems(pod: Object) -> Iterator[str]:
    annotations = pod["metadata"].get("annotations") or {}
    price = annotations.get(labels.MAX_PRICE)
    if price is not None:
        yield from _bad_price(f"metadata.annotations[{labels.MAX_PRICE}]", price)
    yield from annotations_of.problems(pod)
    yield from references.name_problems(pod)
    try:
        ask_of(pod)
    except ValueError as error:
        yield str(error)


_BID_CHECKS = {
    "budget": annotations_of.budget_problem,
    "deadline": annotations_of.deadline_problem,
}


def _bid_problems(spec: Object) -> Iterator[str]:
    choices = spec.get("otherwise") or ()
    for field, choice in [("spec", spec)] + [
        (f"spec.otherwise[{index}]", choice) for index, choice in enumerate(choices)
    ]:
        if choice.get("maxPrice"):
            yield from _bad_price(f"{field}.maxPrice", choice["maxPrice"])
    for field, check in _BID_CHECKS.items():
        if spec.get(field) and (problem := check(spec[field])):
            yield f"spec.{field}: {problem}"
    try:
        yield from shape_problems(msgspec.convert(spec, BidSpec))
    except msgspec.ValidationError:
        return  # the schema reports it


def _pool_problems(spec: Object) -> Iterator[str]:
    if "floorPrice" in spec:
        yield from _bad_price("spec.floorPrice", spec["floorPrice"])
    if spec.get("listPrice"):
        yield from _bad_price("spec.listPrice", spec["listPrice"])
    if spec.get("divides") == Divides.MIG and not spec.get("geometry"):
        yield "spec.geometry: list how each GPU is cut, for example [{profile: 3g.40gb, start: 4}]"


def _hold_problems(bid: Object) -> Iterator[str]:
    text = (bid["metadata"].get("annotations") or {}).get(labels.HOLD_SECONDS)
    if text is not None and (problem := holders.problem(text)):
        yield problem


def _agent_problems(agent: Object) -> Iterator[str]:
    problem = name_problem(agent["metadata"].get("name", ""))
    if problem:
        yield f"metadata.name: {problem}"
    spec = agent["spec"]
    for field in ("refill", "carryOver"):
        if spec.get(field):
            try:
                parse_credits(spec[field])  # the schema limits the amount
            except ValueError as error:
                yield f"spec.{field}: {error}"
    if spec.get("maxPrice"):
        yield from _bad_price("spec.maxPrice", spec["maxPrice"])


def _bad_price(field: str, text: str) -> Iterator[str]:
    try:
        parse_price(text)
    except ValueError as error:
        yield f"{field}: {error}"


def _resources(spec: Object, prefix: str) -> set[str]:
    return {
        name
        for field in ("initContainers", "containers")
        for container in spec.get(field) or ()
        for amounts in (container.get("resources") or {}).values()
        if isinstance(amounts, dict)
        for name in amounts
        if name.startswith(prefix)
    }


def _peak_count(spec: Object, resource: str) -> int:
    """
    Return how many of a resource a pod needs at once.

    Init containers run one after the other before the rest; those that always restart (sidecars)
    run on beside the later containers.
    """
    running, peak = 0, 0
    for i, container in _numbered_containers(spec, "initContainers"):
        count = _limit(f"spec.initContainers[{i}]", container, resource)
        peak = max(peak, running + count)
        if container.get("restartPolicy") == "Always":
            running += count
    for i, container in _numbered_containers(spec, "containers"):
        running += _limit(f"spec.containers[{i}]", container, resource)
    peak = max(peak, running)
    if peak > MOST_GPUS:
        raise ValueError(f"spec: the pod asks for {peak} GPUs; the most is {MOST_GPUS}")
    return peak


def _numbered_containers(spec: Object, field: str) -> Iterator[tuple[int, Any]]:
    return enumerate(spec.get(field) or ())


def _limit(path: str, container: Object, resource: str) -> int:
    """Return how many of a resource a container asks for; raises ValueError."""
    resources = container.get("resources") or {}
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    value = limits.get(resource, requests.get(resource, "0"))
    field = f"{path}.resources.limits[{resource}]"
    if not _WHOLE.fullmatch(str(value)):
        raise ValueError(f"{field}: {value!r} is not a whole number of GPUs")
    return int(value)
