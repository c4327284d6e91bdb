"""What a claim's status says of its allocation, field by field as upstream writes it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from bidplane.api.kinds import Object
from bidplane.core.claims.capacity import written
from bidplane.core.claims.model import Claim
from bidplane.core.claims.search import Given

_SHARES = uuid.UUID("6e1c5a0e-5b0f-4f5c-9d3a-9a1f8f2c7b11")


def allocation(
    claim: Claim, given: Sequence[Given], *, node: str, classes: Mapping[str, Object]
) -> dict[str, Any]:
    """`status.allocation` of the claim, for devices `given` to it on `node`."""
    devices: dict[str, Any] = {"results": [_result(claim, one, at) for at, one in enumerate(given)]}
    config = _config(claim, given, classes)
    if config:
        devices["config"] = config
    found: dict[str, Any] = {"devices": devices}
    selector = _node_selector(given, node)
    if selector:
        found["nodeSelector"] = selector
    return found


def _result(claim: Claim, one: Given, at: int) -> dict[str, Any]:
    device = one.device
    result: dict[str, Any] = {
        "request": one.request.full_name,
        "driver": device.id.driver,
        "pool": device.id.pool,
        "device": device.id.name,
    }
    if one.request.admin:
        result["adminAccess"] = True
    if one.request.tolerations:
        result["tolerations"] = list(one.request.tolerations)
    if one.consumed is not None:
        # Told apart by a name that planning again finds again.
        result["shareID"] = str(uuid.uuid5(_SHARES, f"{claim.uid}/{device.id}/{at}"))
        if one.consumed:
            result["consumedCapacity"] = {
                name: written(amount, device, name) for name, amount in one.consumed.items()
            }
    for field in ("bindingConditions", "bindingFailureConditions"):
        if device.raw.get(field):
            result[field] = device.raw[field]
    return result


def _config(
    claim: Claim, given: Sequence[Given], classes: Mapping[str, Object]
) -> list[dict[str, Any]]:
    chosen = {one.request.base_name: one.request for one in given}
    found: list[dict[str, Any]] = []
    of_class: dict[str, list[dict[str, Any]]] = {}
    for request in chosen.values():
        name = request.device_class
        if name not in of_class:
            configs = (classes[name].get("spec") or {}).get("config") or ()
            of_class[name] = [{"source": "FromClass", "requests": [], **one} for one in configs]
            found += of_class[name]
        for config in of_class[name]:
            config["requests"] = [*config["requests"], request.full_name]
    names = {name for one in chosen.values() for name in (one.base_name, one.full_name)}
    found += [
        {"source": "FromClaim", **one}
        for one in claim.config
        if not one.get("requests") or names & set(one["requests"])
    ]
    for config in found:
        meant = set(config.get("requests") or ())
        # For all is said by naming none.
        if all(one.base_name in meant or one.full_name in meant for one in chosen.values()):
            config.pop("requests", None)
    return found


def _node_selector(given: Sequence[Given], node: str) -> dict[str, Any] | None:
    fields: list[Object] = []
    expressions: list[Object] = []
    for one in given:
        where = one.device.where
        if where.node or one.device.raw.get("bindsToNode"):
            here = {"key": "metadata.name", "operator": "In", "values": [node]}
            return {"nodeSelectorTerms": [{"matchFields": [here]}]}
        for term in (where.selector or {}).get("nodeSelectorTerms") or ():
            fields += (r for r in term.get("matchFields") or () if r not in fields)
            expressions += (r for r in term.get("matchExpressions") or () if r not in expressions)
    term = {}
    if fields:
        term["matchFields"] = fields
    if expressions:
        term["matchExpressions"] = expressions
    return {"nodeSelectorTerms": [term]} if term else None
