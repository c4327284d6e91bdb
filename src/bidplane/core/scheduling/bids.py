"""The Bids of pods and of gangs."""

from __future__ import annotations

import msgspec

from bidplane.api import labels
from bidplane.api.kinds import BID, Draft, Object
from bidplane.core.bidding.asks import IN_ONE_MACHINE, PodAsk
from bidplane.core.nodes.fitting import SHARED, requests_of, required_terms, written_amount
from bidplane.core.scheduling.observed import bid_name, gang_bid_name, truncate_name
from bidplane.wire.quantity import of_bytes


def bid_for_pod(
    pod: Object,
    ask: PodAsk,
    max_price: str,
    claimed: Draft | None = None,
    *,
    instant: bool = False,
    pace: str = "",
) -> Draft:
    """
    Return the Bid of a pod.

    `instant`: buy it from a pool's float, if the float sells as little as that. `pace`: the state
    of the agent's strategy, stored with the bid.
    """
    metadata = pod["metadata"]
    spec = _bid_spec(ask, max_price) if claimed is None else _spec_of_claim(ask, max_price, claimed)
    spec |= _budget_fields(pod, ask) | _machine_fields(pod)
    is_plain = not spec.get("also") and not spec.get("oneNode")
    is_single_gpu = spec["gpus"] == spec.get("blocks", 1) == 1 and is_plain
    if instant and is_single_gpu and not ask.term_seconds:
        spec["instant"] = True
    return {
        "apiVersion": BID.api_version,
        "kind": BID.kind,
        "metadata": {
            "name": bid_name(pod),
            "namespace": metadata["namespace"],
            "labels": {
                labels.POD_UID: metadata["uid"],
                labels.POD_NAME: truncate_name(metadata["name"], 63),
            },
            **({"annotations": {labels.PACE: pace}} if pace else {}),
            # The bid is deleted with the pod.
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
    ask: PodAsk,
    max_price: str,
    blocks: int,
    claimed: Draft | None = None,
) -> Draft:
    """Return the one Bid of a gang. No pod owns it: it ends when the last of them does."""
    spec = _bid_spec(ask, max_price) if claimed is None else _spec_of_claim(ask, max_price, claimed)
    if spec.get("otherwise"):
        spec["otherwise"] = [{**choice, "blocks": blocks} for choice in spec["otherwise"]]
    spec |= _budget_fields(pod, ask) | _machine_fields(pod)
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


def _spec_of_claim(ask: PodAsk, max_price: str, claimed: Draft) -> Draft:
    """Return the spec of a bid whose shape comes from a ResourceClaim."""
    claim_fields = {"gpus", *IN_ONE_MACHINE}  # the claim sets these
    terms = {
        key: value for key, value in _bid_spec(ask, max_price).items() if key not in claim_fields
    }
    shape = {key: value for key, value in _shape(ask, max_price).items() if key not in claim_fields}
    first = _in_pool(ask, claimed)
    alternatives = [{**shape, **_in_pool(ask, choice)} for choice in claimed.get("otherwise") or ()]
    return {**terms, **first, **({"otherwise": alternatives} if alternatives else {})}


def _in_pool(ask: PodAsk, choice: Draft) -> Draft:
    """Return the choice with all its needs in the pool that the pod names."""
    if not ask.pool or not choice.get("also"):
        return choice
    return {**choice, "also": [{"pool": ask.pool, **need} for need in choice["also"]]}


def _bid_spec(ask: PodAsk, max_price: str) -> Draft:
    """Return the spec of a bid: its shape, its price and its terms."""
    return {
        **_shape(ask, max_price),
        **({"termSeconds": ask.term_seconds} if ask.term_seconds else {}),
        **({"urgent": True} if ask.urgent else {}),
    }


def _machine_fields(pod: Object) -> Draft:
    """
    Return the bid's fields on its machine: the resources and the node labels that the pod requires.
    """
    requests = {name: n for name, n in requests_of(pod).items() if n and name in SHARED}
    quantities = {name: written_amount(name, amount) for name, amount in sorted(requests.items())}
    terms = required_terms(pod)
    return {
        **({"requests": quantities} if quantities else {}),
        **({"nodeSelectorTerms": terms} if terms else {}),
    }


def _budget_fields(pod: Object, ask: PodAsk) -> Draft:
    """Return the bid's budget, shared by a controller's pods or by a requeued pod's runs."""
    if not ask.budget:
        return {}
    metadata = pod["metadata"]
    owners = metadata.get("ownerReferences") or ()
    controllers = [owner["uid"] for owner in owners if owner.get("controller")]
    own_work = (metadata.get("annotations") or {}).get(labels.WORK, metadata["uid"])
    return {"budget": ask.budget, "work": next(iter(controllers), own_work)}


def _shape(ask: PodAsk, max_price: str) -> Draft:
    """Return the shape of a bid: how many GPUs, or which part of one, where, at which price."""
    if ask.memory:
        terms = _shape(msgspec.structs.replace(ask, memory=0), max_price)
        return {**terms, "memory": of_bytes(ask.memory << 20)}
    return {
        "gpus": ask.gpus,
        **({} if ask.one_link or ask.gpus == 1 else IN_ONE_MACHINE),
        **({"maxPrice": price} if (price := ask.max_price or max_price) else {}),
        **({"share": ask.share} if ask.share else {}),
        **({"pool": ask.pool} if ask.pool else {}),
    }
