"""
ResourceClaims as bids: which claims the market can sell, and the bid for each of those.

Requests for GPUs become the bid. Requests for devices without a price become what the machine must
have free beside the GPUs. A claim that fits neither is never guessed at.
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
from bidplane.core.bidding import gpumemory
from bidplane.core.bidding.asks import IN_ONE_MACHINE
from bidplane.core.devices.claims.model import Claim, Constraint, DeviceRequest
from bidplane.core.devices.claims.selecting import DeviceMatcher

_PROFILE = re.compile(
    r"""\s*device\.attributes\[["']gpu\.bidplane\.dev["']\]\.profile\s*==\s*(["'])([\w.+]+)\1\s*"""
)


def as_bid(claim: Claim, classes: Mapping[str, Object]) -> dict[str, Any] | None:
    """
    Return the claim as a bid, with its choices as the bid's alternatives; None if it cannot be one.

    Several requests become one bid for all of them in one machine, since that is where the pod
    runs. Requests for unpriced devices become what that machine must have beside the GPUs.
    """
    # Requests for devices without a price.
    free = [choices for choices in claim.requests if not any(map(_is_priced, choices))]
    if not free or gpumemory.asks_capacity(claim):
        return _priced_bid(claim)
    priced = tuple(choices for choices in claim.requests if choices not in free)
    if not priced or len(free) > MOST_BESIDE:
        return None
    matcher = DeviceMatcher(classes)
    beside = []
    for choices in free:
        request = choices[0]
        unsupported = (request.admin, request.everything, request.tolerations)
        constrained = any(constraint.concerns(request) for constraint in claim.constraints)
        if len(choices) > 1 or any(unsupported) or constrained:
            return None
        selectors = [*matcher.of_class(claim.name, request), *request.selectors]
        if max(len(selectors), request.count) > MOST_EACH:
            return None
        need = {"deviceClass": request.device_class, "count": request.count}
        beside.append({**need, "selectors": selectors})
    bid = _priced_bid(msgspec.structs.replace(claim, requests=priced))
    if bid is None:
        return None
    bid_choices = [bid, *bid.get("otherwise", ())]
    # Parts of GPUs and whole domains are not sold by the machine.
    if any(not _INDIVISIBLE.isdisjoint(choice) for choice in bid_choices):
        return None
    alternatives = [{**choice, "oneNode": True} for choice in bid.pop("otherwise", ())]
    joint = {**bid, "oneNode": True, "beside": beside}
    return {**joint, "otherwise": alternatives} if alternatives else joint


_INDIVISIBLE = frozenset({"share", "memory", "wholeDomain"})  # which are sold by themselves


def _is_priced(request: DeviceRequest) -> bool:
    """Return whether the market sells devices of the request's class."""
    return request.device_class in (*labels.GPU_CLASSES, labels.NVIDIA_MIG_CLASS)


def _priced_bid(claim: Claim) -> dict[str, Any] | None:
    """Return a claim of priced requests as a bid, or None if the market cannot sell it."""
    if any(constraint.distinct for constraint in claim.constraints):
        return None
    if gpumemory.asks_capacity(claim):
        return gpumemory.as_bid(claim)
    several = len(claim.requests) > 1
    if several and any(_is_between(constraint, claim) for constraint in claim.constraints):
        return None
    combinations = list(itertools.islice(itertools.product(*claim.requests), _WAYS_MOST + 1))
    choices = [
        _join_needs([_choice(claim, request) for request in combination])
        for combination in combinations
    ]
    if len(combinations) > _WAYS_MOST or any(choice is None for choice in choices):
        return None
    first, *alternatives = (choice for choice in choices if choice is not None)
    return {**first, "otherwise": alternatives} if alternatives else first


_WAYS_MOST = 8  # a bid and its alternatives


def _is_between(constraint: Constraint, claim: Claim) -> bool:
    """Return whether a constraint ties devices of several requests to each other."""
    return sum(any(map(constraint.concerns, choices)) for choices in claim.requests) > 1


def _join_needs(needs: Sequence[dict[str, Any] | None]) -> dict[str, Any] | None:
    """Join the needs of one combination into one bid in one machine; None if one cannot be sold."""
    sold = [need for need in needs if need is not None]
    if len(sold) < len(needs):
        return None
    first, *also = sold
    if not also:
        return first
    # A part of a GPU is sold by itself, and so is all of a domain.
    indivisible = any(not _INDIVISIBLE.isdisjoint(need) for need in sold)
    # `oneNode` is a field of the whole bid.
    also = [{key: value for key, value in need.items() if key != "oneNode"} for need in also]
    return None if indivisible else {**first, "also": also, "oneNode": True}


def _choice(claim: Claim, request: DeviceRequest) -> dict[str, Any] | None:
    """Return one request as a need of a bid; None if the market cannot sell it."""
    if request.admin or request.tolerations:
        return None
    if request.device_class == labels.NVIDIA_MIG_CLASS and not request.everything:
        # An instance is sold by its profile alone, so the claim must select by nothing else.
        profile = _PROFILE.fullmatch(request.selectors[0]) if len(request.selectors) == 1 else None
        if profile is None or claim.constraints or request.count != 1:
            return None
        return {"gpus": 1, "share": profile[2]}
    if request.device_class not in labels.GPU_CLASSES:
        return None
    # All devices of a domain are sold as the domain itself.
    everything = {"gpus": 1, "wholeDomain": True}
    choice: dict[str, Any] = everything if request.everything else {"gpus": request.count}
    if request.selectors:
        choice["selector"] = " && ".join(
            source if len(request.selectors) == 1 else f"({source})" for source in request.selectors
        )
    attributes = list(claim.alike_in(request))
    # Every block is inside one link domain anyway.
    match = [attribute for attribute in attributes if attribute != labels.LINK_DOMAIN_ATTRIBUTE]
    if match:
        choice["matchAttribute"] = match
    if not attributes and not request.everything and request.count > 1:
        choice |= IN_ONE_MACHINE
    return choice
