"""
The devices that nodes publish, and which of them nobody new can have: a device is sold with
its node, so a node that cannot take a pod has nothing for sale.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

import msgspec

from bidplane.api import labels
from bidplane.api.lease import DeviceRef
from bidplane.api.objects import Fields, spec_of
from bidplane.core.devices.foreignuse import DeviceKey, ForeignUse
from bidplane.core.market.lots import facts
from bidplane.core.nodes import availability
from bidplane.core.nodes.availability import NodeState
from bidplane.kube.client import Object


class DeviceView(msgspec.Struct, frozen=True, kw_only=True):
    device: DeviceRef
    product: str
    domain: str  # unique in the fleet
    traits: dict[str, str] = {}  # its attributes and capacities, as text
    facts: bytes = b""  # JSON of what a selector sees of it
    closed: str = ""  # whoever has it keeps it, nobody new gets it: where it is, and why not


def device_views(slice_: Object) -> Iterator[DeviceView]:
    spec = spec_of(slice_)
    node = spec.get("nodeName", "")
    for device in spec.get("devices") or ():
        attributes = device.get("attributes") or {}
        if _string(attributes, labels.TYPE_ATTRIBUTE) == "mig":
            continue  # a part of a GPU that is there as a whole: sold by its pool's geometry
        product = _string(attributes, labels.PRODUCT_ATTRIBUTE)
        taints = {taint.get("effect"): taint.get("key") for taint in device.get("taints") or ()}
        if not node or not product or "NoExecute" in taints:
            continue
        link = _string(attributes, labels.LINK_DOMAIN_ATTRIBUTE)
        yield DeviceView(
            device=DeviceRef(
                node=node, driver=spec["driver"], pool=spec["pool"]["name"], name=device["name"]
            ),
            product=product,
            # A lease is on one node, so a domain is too. Devices that name no link share
            # their node's bus, which is the one link they are known to have.
            domain=f"{node}/{link}" if link else node,
            traits=_traits(device),
            facts=facts(spec["driver"], device),
            closed=f"tainted {key}, on node {node}" if (key := taints.get("NoSchedule")) else "",
        )


def _traits(device: Object) -> dict[str, str]:
    """By name, each attribute's value and each capacity's, in whatever type it is given."""
    quantities = {**(device.get("attributes") or {}), **(device.get("capacity") or {})}
    return {
        name: ",".join(str(value[kind]) for kind in sorted(value))
        for name, value in sorted(quantities.items())
        if isinstance(value, dict)
    }


def _string(attributes: Fields, name: str) -> str:
    value = (attributes.get(name) or {}).get("string", "")
    return value if isinstance(value, str) else ""


_NO_NODE = NodeState(name="", trouble=availability.GONE)


def with_node_trouble(
    views: tuple[DeviceView, ...], nodes: Mapping[str, NodeState]
) -> Iterable[DeviceView]:
    """The devices of a slice, closed to new leases while their node cannot take a pod."""
    name = views[0].device.node if views else ""
    trouble = nodes.get(name, _NO_NODE).trouble
    if not trouble:
        return views
    reason = f"on node {name}, which {trouble}"
    return [msgspec.structs.replace(view, closed=reason) for view in views]


def for_sale(
    views: Iterable[DeviceView], foreign: ForeignUse, parts: Mapping[DeviceKey, str]
) -> Iterator[DeviceView]:
    """
    Close devices that foreign claims have, and those of nodes on which a foreign pod has devices
    that nobody names. `parts`: by device that is a part of a GPU, the GPU's UUID.
    """
    cut = {parts[key]: claim for key, claim in foreign.devices.items() if key in parts}
    for view in views:
        device = view.device
        claim = foreign.devices.get(_key(view)) or cut.get(view.traits.get("uuid", ""))
        if view.closed or not (claim or device.node in foreign.nodes):
            yield view
        elif claim:
            reason = f"held by the claim {claim}, on node {device.node}"
            yield msgspec.structs.replace(view, closed=reason)
        else:
            reason = (
                f"on node {device.node}, where {foreign.nodes[device.node]} and nobody says which"
                " cards these are"
            )
            yield msgspec.structs.replace(view, closed=reason)


def foreign_devices(
    views: Iterable[DeviceView], foreign: ForeignUse, parts: Mapping[DeviceKey, str]
) -> frozenset[DeviceRef]:
    """Return the devices that foreign claims have, all or a part."""
    cut = {parts[key] for key in foreign.devices if key in parts}
    return frozenset(
        view.device
        for view in views
        if _key(view) in foreign.devices or view.traits.get("uuid") in cut
    )


def _key(view: DeviceView) -> DeviceKey:
    return view.device.driver, view.device.pool, view.device.name


def nodes_down(
    nodes: Mapping[str, NodeState],
    published: Iterable[Sequence[DeviceView]],
    leased: AbstractSet[str],
) -> dict[str, int]:
    """By node that is gone (0) or not ready: since when. `leased`: the nodes that leases are on."""
    not_ready = {
        node.name: node.down_since for node in nodes.values() if node.down_since is not None
    }
    names = {views[0].device.node for views in published if views}
    return {**not_ready, **dict.fromkeys((names | leased) - nodes.keys(), 0)}
