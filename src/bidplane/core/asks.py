"""
What a pod asks for, and at what price.

Reads the ways people already ask for GPUs, and our annotations. Anything that cannot be
read is a named problem with the field it is in, never a guess.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec

from bidplane.api import labels
from bidplane.api.agent import name_problem
from bidplane.api.bid import MOST_BLOCKS, MOST_GPUS, BidChoice, BidSpec
from bidplane.api.kinds import AGENT, BID, POD, POOL, Kind, Object
from bidplane.api.money import parse_credits, parse_price
from bidplane.api.pool import Divides
from bidplane.core import annotations as annotations_of
from bidplane.core import holds
from bidplane.core.chain import FRACTIONS, fraction_share
from bidplane.wire.quantity import of_bytes

WORK_SECONDS = 3600  # how long a pod runs that does not say
_WHOLE = re.compile(r"[0-9]{1,9}")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,48}[a-z0-9])?")


class Ask(msgspec.Struct, frozen=True):
    gpus: int  # whole ones; or 1, of a share
    max_price: str  # "" takes the agent's
    pool: str
    share: str = ""  # a part of one GPU: "1/2", or a MIG profile
    memory: int = 0  # or so many MiB of one, whatever part that is of it
    gang: str = ""  # the pods of one gang are bid for, won and bound together
    gang_size: int = 1
    bid: str = ""  # a Bid written by hand, of which this pod uses what it won
    deadline: str = ""  # RFC 3339; "" is none
    work_seconds: int = 0  # 0: it does not say
    term_seconds: int = 0  # so long nobody may displace it
    urgent: bool = False  # it asks for a round at once
    budget: str = ""  # credits that its work may cost in all; "" is no limit
    instant: str = ""  # "true", "false"; "" leaves it to the strategy


# A scheduler asks of all pods that wait whenever one thing changes: the last pods' asks, by the
# identity of the pod as a server gave it, which nobody changes.
_ASKED_MOST = 4096
_asked: dict[int, tuple[Object, Ask]] = {}


def ask_of(pod: Object) -> Ask:
    """The ask of an admitted pod; raises ValueError for one that was not admitted."""
    if not pod["metadata"].get("resourceVersion"):
        return _ask_of(pod)
    known = _asked.get(id(pod))
    if known is None:
        if len(_asked) >= _ASKED_MOST:
            _asked.clear()
        known = _asked[id(pod)] = pod, _ask_of(pod)
    return known[1]


def _ask_of(pod: Object) -> Ask:
    annotations = pod["metadata"].get("annotations") or {}
    gpus, share, memory = _wanted(pod)
    gang = annotations.get(labels.GANG, "")
    if gang and not _NAME.fullmatch(gang):
        raise ValueError(
            f"metadata.annotations[{labels.GANG}]: {gang!r} is not a name: use up to 50 lower-case"
            " letters, digits and '-'"
        )
    if not gang and labels.GANG_SIZE in annotations and not pod["metadata"].get("ownerReferences"):
        raise ValueError(
            f"metadata.annotations[{labels.GANG_SIZE}]: the pod has no controller whose pods it"
            f" could be of: say {labels.GANG} too"
        )
    if gang and memory:
        raise ValueError(
            f"metadata.annotations[{labels.GPU_MEMORY}]: a gang is of equal parts: say"
            f" {labels.GPU_FRACTION} instead"
        )
    return Ask(
        gpus=gpus,
        max_price=annotations.get(labels.MAX_PRICE, ""),
        pool=annotations.get(labels.POOL, ""),
        share=share,
        memory=memory,
        gang=gang,
        gang_size=_gang_size(annotations) if gang or labels.GANG_SIZE in annotations else 1,
        bid=annotations.get(labels.BID_NAME, ""),
        deadline=_time(annotations),
        work_seconds=_work(annotations),
        term_seconds=_term(annotations),
        urgent=annotations.get(labels.URGENCY) == "high",
        budget=annotations.get(labels.BUDGET, ""),
        instant=annotations.get(labels.INSTANT, ""),
    )


def _time(annotations: Object) -> str:
    """As it is written; "" for what `annotations` has refused already."""
    text: str = annotations.get(labels.DEADLINE, "")
    try:
        return text if text and datetime.fromisoformat(text).tzinfo else ""
    except ValueError:
        return ""


def _term(annotations: Object) -> int:
    """Seconds nobody may displace it for: said so, or for as long as it runs."""
    text = annotations.get(labels.TERM, "")
    if _WHOLE.fullmatch(text):
        return int(text)
    never = annotations.get(labels.PREEMPTIBLE) == "false"
    return (_work(annotations) or WORK_SECONDS) if never else 0


def _work(annotations: Object) -> int:
    text = annotations.get(labels.WORK_SECONDS, "0")
    if not _WHOLE.fullmatch(text):
        raise ValueError(
            f"metadata.annotations[{labels.WORK_SECONDS}]: {text!r} is not a number of seconds"
        )
    return int(text)


def _gang_size(annotations: Object) -> int:
    text = annotations.get(labels.GANG_SIZE, "")
    size = int(text) if _WHOLE.fullmatch(text) else 0
    if not 1 <= size <= MOST_BLOCKS:
        raise ValueError(
            f"metadata.annotations[{labels.GANG_SIZE}]: {text!r} is not the number of pods of the"
            f" gang: write 1 to {MOST_BLOCKS}"
        )
    return size


def memory_choices(amount: int) -> list[dict[str, Any]]:
    """
    So many bytes, as parts of a GPU: of each GPU the smallest part that has them, and all of one
    of which they are more than half. A GPU fits one choice, so that none is bought too large.
    """
    memory = "device.capacity[device.driver].memory"
    found = []
    more = ""
    for leaf in (*reversed(FRACTIONS), None):
        least = of_bytes(amount * (leaf.per_gpu if leaf else 1))
        selector = f'has({memory}) && {memory}.compareTo(quantity("{least}")) >= 0{more}'
        found.append({"gpus": 1, "selector": selector, **({"share": leaf.name} if leaf else {})})
        more = f' && {memory}.compareTo(quantity("{least}")) < 0'
    return found


def _wanted(pod: Object) -> tuple[int, str, int]:
    """Whole GPUs; or a part or some memory of one, as KAI's annotations or MIG's resource say."""
    annotations = pod["metadata"].get("annotations") or {}
    whole = _most(pod["spec"], labels.GPU_RESOURCE)
    parts = {
        name.removeprefix(labels.MIG_PREFIX): count
        for name in sorted(_resources(pod["spec"], labels.MIG_PREFIX))
        if (count := _most(pod["spec"], name))
    }
    fraction, memory = annotations.get(labels.GPU_FRACTION), annotations.get(labels.GPU_MEMORY)
    ways = (bool(whole), bool(parts), fraction is not None, memory is not None)
    if sum(ways) > 1 or len(parts) > 1:
        raise ValueError(
            "spec: the pod asks for GPUs in more than one way: a lease is whole GPUs, or one"
            " part of a GPU; use a pod for each"
        )
    if annotations.get(labels.GPU_FRACTION_DEVICES, "1") != "1":
        raise ValueError(
            f"metadata.annotations[{labels.GPU_FRACTION_DEVICES}]: one part of one GPU is sold to a"
            " pod: take it out, and use a pod for each, or whole GPUs"
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
            return 1, fraction_share(fraction), 0
        except ValueError as error:
            raise ValueError(f"metadata.annotations[{labels.GPU_FRACTION}]: {error}") from None
    for profile, count in parts.items():
        if count > 1:
            raise ValueError(
                f"spec: the pod asks for {count} × {profile}; one part of a GPU is sold to a pod:"
                " ask for a larger profile, or use a pod for each"
            )
        return 1, profile, 0
    return whole, "", 0


def shape_problems(spec: BidSpec) -> Iterator[str]:
    """What no pool could sell of a bid, one sentence each."""
    for field, choice in [("spec", spec)] + [
        (f"spec.otherwise[{n}]", choice) for n, choice in enumerate(spec.otherwise)
    ]:
        if choice.share and (choice.gpus != 1 or choice.spread):
            yield (
                f"{field}: a bid for {choice.share!r} is for one part of one GPU: set gpus to 1,"
                " and blocks for several"
            )
        if choice.whole_domain and (
            choice.share or choice.spread or choice.also or choice.one_node
        ):
            yield (
                f"{field}: wholeDomain is a link domain by itself: take out share, spread, also and"
                " oneNode"
            )
        if choice.share and (choice.also or choice.one_node):
            yield (
                f"{field}: {choice.share!r} is a part of a GPU, which is sold by itself: bid for it"
                " alone, without also and oneNode"
            )
        if choice.one_node and any(need.blocks > 1 for need in choice.also):
            yield (
                f"{field}: with oneNode, blocks says how many sets of all it asks for: say it once,"
                " not in also"
            )
        if spec.beside and not choice.one_node:
            yield f"{field}: beside is what its machine must have: say oneNode, too"
        if (total := _gpus_of(choice)) > MOST_GPUS:
            yield f"{field}: it is for {total} GPUs; the most is {MOST_GPUS}"


def gpus_asked(spec: Object) -> int:
    """How many a Bid as it is written asks for in all."""
    sets = spec.get("blocks", 1)
    also = sum(need["gpus"] * need.get("blocks", 1) for need in spec.get("also") or ())
    gpus: int = spec.get("gpus", 1) * sets + also * (sets if spec.get("oneNode") else 1)
    return gpus


def _gpus_of(choice: BidSpec | BidChoice) -> int:
    if choice.one_node:
        return choice.blocks * (choice.gpus + sum(need.gpus for need in choice.also))
    return choice.gpus * choice.blocks + sum(need.gpus * need.blocks for need in choice.also)


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
            return list(_pool_problems(obj["spec"]))
    return []


def _pod_problems(pod: Object) -> Iterator[str]:
    annotations = pod["metadata"].get("annotations") or {}
    price = annotations.get(labels.MAX_PRICE)
    if price is not None:
        yield from _bad_price(f"metadata.annotations[{labels.MAX_PRICE}]", price)
    yield from annotations_of.problems(pod)
    try:
        ask_of(pod)
    except ValueError as error:
        yield str(error)


def _bid_problems(spec: Object) -> Iterator[str]:
    choices = spec.get("otherwise") or ()
    for field, choice in [("spec", spec)] + [
        (f"spec.otherwise[{index}]", choice) for index, choice in enumerate(choices)
    ]:
        if "maxPrice" in choice or field == "spec":
            yield from _bad_price(f"{field}.maxPrice", choice.get("maxPrice", ""))
    try:
        yield from shape_problems(msgspec.convert(spec, BidSpec))
    except msgspec.ValidationError:
        return  # the schema has said so


def _pool_problems(spec: Object) -> Iterator[str]:
    if "floorPrice" in spec:
        yield from _bad_price("spec.floorPrice", spec["floorPrice"])
    if spec.get("divides") == Divides.MIG and not spec.get("geometry"):
        yield "spec.geometry: say how each GPU is cut, for example [{profile: 3g.40gb, start: 4}]"


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


def _most(spec: Object, resource: str) -> int:
    """
    How many of a resource a pod needs at once.

    Init containers run one after the other before the rest; those that restart always
    (sidecars) stay beside whatever comes after them.
    """
    staying, most = 0, 0
    for i, container in _each(spec, "initContainers"):
        count = _limit(f"spec.initContainers[{i}]", container, resource)
        most = max(most, staying + count)
        if container.get("restartPolicy") == "Always":
            staying += count
    for i, container in _each(spec, "containers"):
        staying += _limit(f"spec.containers[{i}]", container, resource)
    most = max(most, staying)
    if most > MOST_GPUS:
        raise ValueError(f"spec: the pod asks for {most} GPUs; the most is {MOST_GPUS}")
    return most


def _each(spec: Object, field: str) -> Iterator[tuple[int, Any]]:
    return enumerate(spec.get(field) or ())


def _limit(path: str, container: Object, resource: str) -> int:
    resources = container.get("resources") or {}
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    value = limits.get(resource, requests.get(resource, "0"))
    field = f"{path}.resources.limits[{resource}]"
    if not _WHOLE.fullmatch(str(value)):
        raise ValueError(f"{field}: {value!r} is not a whole number of GPUs")
    return int(value)
