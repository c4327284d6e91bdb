"""
Claims for an amount of a GPU's memory (consumable capacity), as parts that the market sells.

An amount of memory becomes a bid for as much of a GPU as has it; how much that is depends on the
GPU, so the round works it out (`market.shapes`). A claim that cannot be sold like that is refused
with what to write instead.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from bidplane.api import labels
from bidplane.api.bid import BidReason
from bidplane.core.devices.claims.model import Claim, ClaimError, DeviceRequest
from bidplane.wire.quantity import of_bytes

MEMORY = "memory"  # the capacity that is sold
# What a part publishes and what the market publishes of its whole GPU differ in these fields.
_DIFFERS = re.compile(r"(?<![\w.])device\s*\.\s*(capacity|allowMultipleAllocations)\b")


def asks_capacity(claim: Claim) -> bool:
    """Return whether a claim asks for an amount of capacity."""
    return any(request.capacity for choices in claim.requests for request in choices)


def as_bid(claim: Claim) -> dict[str, Any]:
    """Return the claim as a bid for a part of a GPU; raises `ClaimError` if no part is sold so."""
    first, *alternatives = _choices(claim)
    return {**first, "otherwise": alternatives}


def refusals(claim: Claim) -> Mapping[str, str]:
    """Return, by a bid's reason, the explanation of that reason for a claim of some memory."""
    amounts = sorted(
        {_amount(request) for choices in claim.requests for request in choices if request.capacity}
    )
    if not amounts:
        return {}
    requested = f"capacity.requests[{MEMORY}] of {' or '.join(map(of_bytes, amounts))}"
    return {
        BidReason.SELECTS_NOTHING: (
            f"{requested}: no GPU that is sold there has so much memory and matches the claim's"
            " selectors; ask for less, or for other GPUs"
        ),
        BidReason.SHAPE_NOT_SOLD: (
            f"{requested} is a part of a GPU that the pool does not sell: remove capacity to claim"
            f" a whole GPU, or name another pool ({labels.POOL})"
        ),
    }


def _choices(claim: Claim) -> Iterator[dict[str, Any]]:
    """Yield the parts of GPUs that satisfy the claim's one request, as choices of a bid."""
    claim_name = f"claim {claim.name}"
    if len(claim.requests) > 1:
        raise ClaimError(
            f"{claim_name}: a part of a GPU is sold by itself: claim it with one request, and other"
            " devices in another pod; or remove capacity, to claim whole GPUs"
        )
    (requests,) = claim.requests
    for request in requests:
        _check(f"{claim_name}, request {request.full_name}", request)
        match = [
            attribute
            for attribute in claim.alike_in(request)
            if attribute != labels.LINK_DOMAIN_ATTRIBUTE
        ]
        selectors = [f"({source})" for source in request.selectors]
        yield {
            "gpus": 1,
            "memory": of_bytes(_amount(request)),
            **({"selector": " && ".join(selectors)} if selectors else {}),
            **({"matchAttribute": match} if match else {}),
        }


def _check(field_path: str, request: DeviceRequest) -> None:
    """Raise `ClaimError` for a request that is not for one part of one GPU."""
    field = f"{field_path}: capacity.requests"
    if not request.capacity:
        raise ClaimError(
            f"{field}: this choice has none, and other choices have: request memory in each of"
            " them, or in none"
        )
    unknown = sorted(request.capacity.keys() - {MEMORY})
    if unknown:
        raise ClaimError(
            f"{field}[{unknown[0]}]: parts of GPUs are sold only by their {MEMORY}: write"
            f" {{{MEMORY}: 20Gi}}"
        )
    if request.capacity[MEMORY] <= 0:
        raise ClaimError(f"{field}[{MEMORY}]: it must be more than 0, such as 20Gi")
    if request.device_class not in labels.GPU_CLASSES:
        raise ClaimError(
            f"{field_path}: capacity is sold of GPUs: write deviceClassName: {labels.DEVICE_CLASS};"
            " a MIG instance is claimed by its profile"
        )
    if request.everything or request.count != 1:
        raise ClaimError(
            f"{field_path}: one part of one GPU is sold to a claim: write count: 1, and use a pod"
            " and a claim for each part; or remove capacity, to claim whole GPUs"
        )
    if request.admin or request.tolerations:
        raise ClaimError(
            f"{field_path}: parts are sold without adminAccess and tolerations: remove them"
        )
    for source in request.selectors:
        if differs := _DIFFERS.search(source):
            raise ClaimError(
                f"{field_path}: a selector reads device.{differs[1]}, which differs between a GPU"
                " and a part of it: select by attributes, such as"
                f' device.attributes["{labels.DEVICE_CLASS}"].productName, and request the memory'
                " in capacity.requests"
            )


def _amount(request: DeviceRequest) -> int:
    """Return the bytes of memory that a request asks for."""
    return math.ceil(request.capacity.get(MEMORY, 0))
