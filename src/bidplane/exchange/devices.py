"""
The devices that nodes publish, and which of them nobody new can have: a device is sold with
its node, so a node that cannot take a pod has nothing for sale.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import msgspec

from bidplane.api import labels
from bidplane.api.lease import Device
from bidplane.core import nodestate
from bidplane.core.market.lots import facts
from bidplane.core.nodestate import NodeState
from bidplane.kube.client import Object


class DeviceView(msgspec.Struct, frozen=True, kw_only=True):
    device: Device
    product: str
    domain: str  # unique in the fleet
    traits: dict[str, str] = {}  # its attributes and capacities, as text
    facts: bytes = b""  # JSON of what a selector sees of it
    closed: str = ""  # whoever has it keeps it, nobody new gets it: where it is, and why not


def device_views(slice_: Object) -> Iterator[DeviceView]:
    spec = slice_.get("spec") or {}
    node = spec.get("nodeName", "")
    for device in spec.get("devices") or ():
        attributes = device.get("attributes") or {}
        if _string(attributes, labels.TYPE_ATTRIBUTE) == "mig":
            continue  # a part of a GPU that is there as a whole: sold by its pool's geometry
        product = _string(attributes, labels.PRODUCT_ATTRIBUTE)
        taints = {taint.get("effect") for taint in device.get("taints") or ()}
        if not node or not product or "NoExecute" in taints:
            continue
        link = _string(attributes, labels.LINK_DOMAIN_ATTRIBUTE)
        yield DeviceView(
            device=Device(
                node=node, driver=spec["driver"], pool=spec["pool"]["name"], name=device["name"]
            ),
            product=product,
            # A lease is on one node, so a domain is too. Devices that name no link share
            # their node's bus, which is the one link they are known to have.
            domain=f"{node}/{link}" if link else node,
            traits=_traits(device),
            facts=facts(spec["driver"], device),
            closed=f"tainted, on node {node}" if "NoSchedule" in taints else "",
        )


def _traits(device: Object) -> dict[str, str]:
    """By name, each attribute's value and each capacity's, in whatever type it is given."""
    found = {**(device.get("attributes") or {}), **(device.get("capacity") or {})}
    return {
        name: ",".join(str(value[kind]) for kind in sorted(value))
        for name, value in sorted(found.items())
        if isinstance(value, dict)
    }


def _string(attributes: dict[str, Any], name: str) -> str:
    value = (attributes.get(name) or {}).get("string", "")
    return value if isinstance(value, str) else ""


_NO_NODE = NodeState(name="", trouble=nodestate.GONE)


def where_they_are(
    views: tuple[DeviceView, ...], nodes: Mapping[str, NodeState]
) -> Iterable[DeviceView]:
    """A slice's devices. Nobody new gets them while their node cannot take a pod."""
    name = views[0].device.node if views else ""
    trouble = nodes.get(name, _NO_NODE).trouble
    if not trouble:
        return views
    why = f"on node {name}, which {trouble}"
    return [msgspec.structs.replace(view, closed=why) for view in views]


def down(
    nodes: Mapping[str, NodeState],
    published: Iterable[Sequence[DeviceView]],
    leased: AbstractSet[str],
) -> dict[str, int]:
    """By node that is gone (0) or known not to be ready: since when. `leased`: those in use."""
    found = {node.name: node.down_since for node in nodes.values() if node.down_since is not None}
    names = {some[0].device.node for some in published if some}
    return {**found, **dict.fromkeys((names | leased) - nodes.keys(), 0)}
