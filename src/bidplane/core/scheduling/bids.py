"""The Bid a pod becomes, and the one a gang becomes."""

from __future__ import annotations

from typing import Any

import msgspec

from bidplane.api import labels
from bidplane.api.kinds import BID, Object
from bidplane.core.asks import Ask, memory_choices
from bidplane.core.scheduling.seen import bid_name, cut, gang_bid_name


def bid_for_pod(
    pod: Object,
    ask: Ask,
    max_price: str,
    claimed: dict[str, Any] | None = None,
    *,
    instant: bool = False,
    pace: str = "",
) -> dict[str, Any]:
    """
    `instant`: it is bought from a pool's float, if it is as little as a float sells. `pace`: what
    the agent's strategy remembers with it.
    """
    metadata = pod["metadata"]
    spec = _bid_spec(ask, max_price) if claimed is None else _of_claim(ask, max_price, claimed)
    spec |= _budget(pod, ask)
    alone = not spec.get("also") and not spec.get("oneNode")
    one = spec["gpus"] == spec.get("blocks", 1) == 1 and alone
    if instant and one and not ask.term_seconds:
        spec["instant"] = True
    return {
        "apiVersion": BID.api_version,
        "kind": BID.kind,
        "metadata": {
            "name": bid_name(pod),
            "namespace": metadata["namespace"],
            "labels": {
                labels.POD_UID: metadata["uid"],
                labels.POD_NAME: cut(metadata["name"], 63),
            },
            **({"annotations": {labels.PACE: pace}} if pace else {}),
            # The pod's end is the bid's end.
            "ownerReferences": [
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "name": metadata["name"],
                    "uid": metadata["uid"],
                    "controller": True,
                }
            ],
        },
        "spec": spec,
    }


def bid_for_gang(
    pod: Object,
    gang: str,
    ask: Ask,
    max_price: str,
    blocks: int,
    claimed: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """One bid for all of a gang. No pod owns it: it ends when the last of them does."""
    spec = _bid_spec(ask, max_price) if claimed is None else _of_claim(ask, max_price, claimed)
    if spec.get("otherwise"):
        spec["otherwise"] = [{**choice, "blocks": blocks} for choice in spec["otherwise"]]
    spec |= _budget(pod, ask)
    return {
        "apiVersion": BID.api_version,
        "kind": BID.kind,
        "metadata": {
            "name": gang_bid_name(gang),
            "namespace": pod["metadata"]["namespace"],
            "labels": {labels.GANG: gang},
        },
        "spec": {**spec, "blocks": blocks},
    }


def _of_claim(ask: Ask, max_price: str, claimed: dict[str, Any]) -> dict[str, Any]:
    terms = {key: value for key, value in _bid_spec(ask, max_price).items() if key != "gpus"}
    shape = {key: value for key, value in _shape(ask, max_price).items() if key != "gpus"}
    first = _in_pool(ask, claimed)
    others = [{**shape, **_in_pool(ask, choice)} for choice in claimed.get("otherwise") or ()]
    return {**terms, **first, **({"otherwise": others} if others else {})}


def _in_pool(ask: Ask, choice: dict[str, Any]) -> dict[str, Any]:
    """A pod that names a pool has all it needs from there."""
    if not ask.pool or not choice.get("also"):
        return choice
    return {**choice, "also": [{"pool": ask.pool, **need} for need in choice["also"]]}


def _bid_spec(ask: Ask, max_price: str) -> dict[str, Any]:
    """What it asks for, and on which terms it wants to have it."""
    return {
        **_shape(ask, max_price),
        **({"termSeconds": ask.term_seconds} if ask.term_seconds else {}),
        **({"urgent": True} if ask.urgent else {}),
    }


def _budget(pod: Object, ask: Ask) -> dict[str, Any]:
    """What it may cost, with all that shares it: its controller's other pods, or what it was."""
    if not ask.budget:
        return {}
    metadata = pod["metadata"]
    owners = metadata.get("ownerReferences") or ()
    controllers = [owner["uid"] for owner in owners if owner.get("controller")]
    before = (metadata.get("annotations") or {}).get(labels.WORK, metadata["uid"])
    return {"budget": ask.budget, "work": next(iter(controllers), before)}


def _shape(ask: Ask, max_price: str) -> dict[str, Any]:
    if ask.memory:
        terms = _shape(msgspec.structs.replace(ask, memory=0), max_price)
        first, *others = ({**terms, **choice} for choice in memory_choices(ask.memory << 20))
        return {**first, "otherwise": others}
    return {
        "gpus": ask.gpus,
        "maxPrice": ask.max_price or max_price,
        **({"share": ask.share} if ask.share else {}),
        **({"pool": ask.pool} if ask.pool else {}),
    }
