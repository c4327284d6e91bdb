"""
Claims for some of a GPU's memory (consumable capacity), as parts the market sells.

So much memory is a bid for the least part that has it, ⅛, ¼, ½ or a whole GPU, of whichever GPU
it is. What cannot be sold like that is refused with what to write instead.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from bidplane.api import labels
from bidplane.api.bid import BidReason
from bidplane.core.asks import memory_choices
from bidplane.core.claims.model import Claim, ClaimError, Request
from bidplane.wire.quantity import of_bytes

MEMORY = "memory"  # the capacity that is sold
_CLASSES = (labels.DEVICE_CLASS, "gpu.nvidia.com")
_CHOICES_MOST = 2  # each is four choices of a bid, which has eight
# A part shows what it has itself, and may be asked of it; a GPU of the market shows all it has.
_DIFFERS = re.compile(r"(?<![\w.])device\s*\.\s*(capacity|allowMultipleAllocations)\b")


def is_asked(claim: Claim) -> bool:
    return any(request.capacity for choices in claim.requests for request in choices)


def as_bid(claim: Claim) -> dict[str, Any]:
    """The claim as a bid for a part of a GPU; raises `ClaimError` for what is sold as none."""
    first, *others = _choices(claim)
    return {**first, "otherwise": others}


def refusals(claim: Claim) -> Mapping[str, str]:
    """By a bid's reason, what the market's answer means for a claim of some memory."""
    amounts = sorted(
        {_amount(request) for choices in claim.requests for request in choices if request.capacity}
    )
    if not amounts:
        return {}
    asked = f"capacity.requests[{MEMORY}] of {' or '.join(map(of_bytes, amounts))}"
    return {
        BidReason.SELECTS_NOTHING: (
            f"{asked}: no GPU that is sold there has so much memory, and is as the claim's"
            " selectors say; ask for less, or for other GPUs"
        ),
        BidReason.SHAPE_NOT_SOLD: (
            f"{asked} is a part of a GPU, and the pool sells only others, or whole GPUs: take"
            f" capacity out to claim a whole one, or name another pool ({labels.POOL})"
        ),
    }


def _choices(claim: Claim) -> Iterator[dict[str, Any]]:
    where = f"claim {claim.name}"
    if len(claim.requests) > 1:
        raise ClaimError(
            f"{where}: a part of a GPU is sold by itself: claim it with one request, and what is"
            " beside it from a pod of its own; or take capacity out, to claim whole GPUs"
        )
    (requests,) = claim.requests
    if len(requests) > _CHOICES_MOST:
        raise ClaimError(
            f"{where}: firstAvailable has {len(requests)} choices; of parts of a GPU the most is"
            f" {_CHOICES_MOST}"
        )
    for request in requests:
        _check(f"{where}, request {request.full_name}", request)
        match = [
            one.match
            for one in claim.constraints
            if one.concerns(request) and one.match != labels.LINK_DOMAIN_ATTRIBUTE
        ]
        for choice in memory_choices(_amount(request)):
            meant = [f"({source})" for source in request.selectors]
            choice["selector"] = " && ".join([*meant, choice["selector"]])
            yield {**choice, **({"matchAttribute": match} if match else {})}


def _check(where: str, request: Request) -> None:
    field = f"{where}: capacity.requests"
    if not request.capacity:
        raise ClaimError(
            f"{field}: other choices have it, and this one has not: say so much memory in each of"
            " them, or in none"
        )
    unknown = sorted(request.capacity.keys() - {MEMORY})
    if unknown:
        raise ClaimError(
            f"{field}[{unknown[0]}]: parts of GPUs are sold by their {MEMORY}, and by nothing"
            f" else: write {{{MEMORY}: 20Gi}}"
        )
    if request.capacity[MEMORY] <= 0:
        raise ClaimError(f"{field}[{MEMORY}]: it must be more than 0, such as 20Gi")
    if request.device_class not in _CLASSES:
        raise ClaimError(
            f"{where}: capacity is sold of GPUs: write deviceClassName: {labels.DEVICE_CLASS}; a"
            " MIG instance is claimed by its profile"
        )
    if request.everything or request.count != 1:
        raise ClaimError(
            f"{where}: one part of one GPU is sold to a claim: write count: 1, and use a pod and a"
            " claim for each; or take capacity out, to claim whole GPUs"
        )
    if request.admin or request.tolerations:
        raise ClaimError(f"{where}: parts are sold without adminAccess and tolerations")
    for source in request.selectors:
        if differs := _DIFFERS.search(source):
            raise ClaimError(
                f"{where}: a selector reads device.{differs[1]}, which is not the same of a GPU and"
                f" of a part of it: select by attributes, such as"
                f' device.attributes["{labels.DEVICE_CLASS}"].productName, and say what memory is'
                " needed in capacity.requests"
            )


def _amount(request: Request) -> int:
    return math.ceil(request.capacity.get(MEMORY, 0))
