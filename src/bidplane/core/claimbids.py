"""
A claim as a bid: which are blocks of the market, and what of a bid each becomes.

Requests for GPUs are what is bid for. Those for devices that nobody sells say what must be free
beside them in the machine; the rest of a claim is never guessed at.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from bidplane.api import labels
from bidplane.api.bid import MOST_BESIDE, MOST_EACH
from bidplane.api.kinds import Object
from bidplane.core import portions
from bidplane.core.claims.model import Claim, Constraint, Request
from bidplane.core.claims.selecting import Selecting

_PROFILE = re.compile(
    r"""\s*device\.attributes\[["']gpu\.bidplane\.dev["']\]\.profile\s*==\s*(["'])([\w.+]+)\1\s*"""
)


def as_bid(claim: Claim, classes: Mapping[str, Object]) -> dict[str, Any] | None:
    """
    The claim as blocks of the market, its choices the bid's; None if it is not so simple. Several
    requests are one bid for all of them, in one machine: where a pod is. Requests for what
    nobody sells say what that machine must have beside.
    """
    # What nobody sells.
    free = [choices for choices in claim.requests if not any(map(_is_priced, choices))]
    if not free or portions.is_asked(claim):
        return _sold(claim)
    priced = tuple(choices for choices in claim.requests if choices not in free)
    if not priced or len(free) > MOST_BESIDE:
        return None
    selecting = Selecting(classes)
    beside = []
    for choices in free:
        request = choices[0]
        asked = (request.admin, request.everything, request.tolerations)
        tied = any(one.concerns(request) for one in claim.constraints)
        if len(choices) > 1 or any(asked) or tied:
            return None
        selectors = [*selecting.of_class(claim.name, request), *request.selectors]
        if max(len(selectors), request.count) > MOST_EACH:
            return None
        need = {"deviceClass": request.device_class, "count": request.count}
        beside.append({**need, "selectors": selectors})
    bid = _sold(msgspec.structs.replace(claim, requests=priced))
    if bid is None:
        return None
    ways = [bid, *bid.get("otherwise", ())]
    # Parts of GPUs and whole domains are not sold by the machine.
    if any("share" in one or "wholeDomain" in one for one in ways):
        return None
    others = [{**one, "oneNode": True} for one in bid.pop("otherwise", ())]
    made = {**bid, "oneNode": True, "beside": beside}
    return {**made, "otherwise": others} if others else made


_PRICED = (labels.DEVICE_CLASS, "gpu.nvidia.com", "mig.nvidia.com")


def _is_priced(request: Request) -> bool:
    return request.device_class in _PRICED


def _sold(claim: Claim) -> dict[str, Any] | None:
    if any(one.distinct for one in claim.constraints):
        return None
    if portions.is_asked(claim):
        return portions.as_bid(claim)
    several = len(claim.requests) > 1
    if several and any(_is_between(one, claim) for one in claim.constraints):
        return None
    ways = list(itertools.islice(itertools.product(*claim.requests), _WAYS_MOST + 1))
    choices = [_together([_choice(claim, request) for request in way]) for way in ways]
    if len(ways) > _WAYS_MOST or any(choice is None for choice in choices):
        return None
    first, *others = (choice for choice in choices if choice is not None)
    return {**first, "otherwise": others} if others else first


_WAYS_MOST = 8  # a bid and its alternatives


def _is_between(constraint: Constraint, claim: Claim) -> bool:
    """Whether it binds devices of several requests to each other."""
    return sum(any(map(constraint.concerns, choices)) for choices in claim.requests) > 1


def _together(needs: Sequence[dict[str, Any] | None]) -> dict[str, Any] | None:
    known = [need for need in needs if need is not None]
    if len(known) < len(needs):
        return None
    first, *also = known
    if not also:
        return first
    # A part of a GPU is sold by itself, and so is all of a domain.
    alone = any("share" in need or "wholeDomain" in need for need in known)
    return None if alone else {**first, "also": also, "oneNode": True}


def _choice(claim: Claim, request: Request) -> dict[str, Any] | None:
    if request.admin or request.tolerations:
        return None
    if request.device_class == "mig.nvidia.com" and not request.everything:
        # Instances are sold by their profile, which the claim must say, and say no more.
        profile = _PROFILE.fullmatch(request.selectors[0]) if len(request.selectors) == 1 else None
        if profile is None or claim.constraints or request.count != 1:
            return None
        return {"gpus": 1, "share": profile[2]}
    if request.device_class not in _PRICED or request.device_class == "mig.nvidia.com":
        return None
    # All there are is a domain as it is: nobody else has a part of it.
    everything = {"gpus": 1, "wholeDomain": True}
    made: dict[str, Any] = everything if request.everything else {"gpus": request.count}
    if request.selectors:
        made["selector"] = " && ".join(
            source if len(request.selectors) == 1 else f"({source})" for source in request.selectors
        )
    # A block is inside one link domain as it is.
    match = [
        one.match
        for one in claim.constraints
        if one.concerns(request) and one.match != labels.LINK_DOMAIN_ATTRIBUTE
    ]
    if match:
        made["matchAttribute"] = match
    return made
