"""A claim's `status.allocation`, field by field as upstream writes it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from bidplane.api.kinds import Object
from bidplane.core.devices.claims.capacity import written
from bidplane.core.devices.claims.model import Claim
from bidplane.core.devices.claims.search import DeviceGrant

_SHARES = uuid.UUID("6e1c5a0e-5b0f-4f5c-9d3a-9a1f8f2c7b11")


def allocation(
    claim: Claim, grants: Sequence[DeviceGrant], *, node: str, classes: Mapping[str, Object]
) -> dict[str, Any]:
    """Return the claim's `status.allocation` for the devices granted to it on `node`."""
    devices: dict[str, Any] = {
        "results": [_result(claim, grant, index) for index, grant in enumerate(grants)]
    }
    config = _config(claim, grants, classes)
    if config:
        devices["config"] = config
    status: dict[str, Any] = {"devices": devices}
    selector = _node_selector(grants, node)
    if selector:
        status["nodeSelector"] = selector
    return status


def _result(claim: Claim, grant: DeviceGrant, index: int) -> dict[str, Any]:
    """Return one entry of `status.allocation.devices.results`."""
    device = grant.device
    result: dict[str, Any] = {
        "request": grant.request.full_name,
        "driver": device.id.driver,
        "pool": device.id.pool,
        "device": device.id.name,
    }
    if grant.request.admin:
        result["adminAccess"] = True
    if grant.request.tolerations:
        result["tolerations"] = list(grant.request.tolerations)
    if grant.consumed is not None:
        # Derived from the claim and the device, so that planning again gives the same ID.
        result["shareID"] = str(uuid.uuid5(_SHARES, f"{claim.uid}/{device.id}/{index}"))
        if grant.consumed:
            result["consumedCapacity"] = {
                name: written(amount, device, name) for name, amount in grant.consumed.items()
            }
    for field in ("bindingConditions", "bindingFailureConditions"):
        if device.raw.get(field):
            result[field] = device.raw[field]
    return result


def _config(
    claim: Claim, grants: Sequence[DeviceGrant], classes: Mapping[str, Object]
) -> list[dict[str, Any]]:
    """Return the configuration of the devices, from their classes and from the claim."""
    chosen = {grant.request.base_name: grant.request for grant in grants}
    configs: list[dict[str, Any]] = []
    of_class: dict[str, list[dict[str, Any]]] = {}
    for request in chosen.values():
        name = request.device_class
        if name not in of_class:
            class_configs = (classes[name].get("spec") or {}).get("config") or ()
            of_class[name] = [
                {"source": "FromClass", "requests": [], **class_config}
                for class_config in class_configs
            ]
            configs += of_class[name]
        for config in of_class[name]:
            config["requests"] = [*config["requests"], request.full_name]
    names = {name for request in chosen.values() for name in (request.base_name, request.full_name)}
    configs += [
        {"source": "FromClaim", **claim_config}
        for claim_config in claim.config
        if not claim_config.get("requests") or names & set(claim_config["requests"])
    ]
    for config in configs:
        targets = set(config.get("requests") or ())
        # A configuration for all requests names none.
        if all(
            request.base_name in targets or request.full_name in targets
            for request in chosen.values()
        ):
            config.pop("requests", None)
    return configs


def _node_selector(grants: Sequence[DeviceGrant], node: str) -> dict[str, Any] | None:
    """Return the nodes from which all the devices can be used; None if any node will do."""
    fields: list[Object] = []
    expressions: list[Object] = []
    for grant in grants:
        scope = grant.device.scope
        if scope.node or grant.device.raw.get("bindsToNode"):
            on_node = {"key": "metadata.name", "operator": "In", "values": [node]}
            return {"nodeSelectorTerms": [{"matchFields": [on_node]}]}
        for term in (scope.selector or {}).get("nodeSelectorTerms") or ():
            fields += (r for r in term.get("matchFields") or () if r not in fields)
            expressions += (r for r in term.get("matchExpressions") or () if r not in expressions)
    term = {}
    if fields:
        term["matchFields"] = fields
    if expressions:
        term["matchExpressions"] = expressions
    return {"nodeSelectorTerms": [term]} if term else None
