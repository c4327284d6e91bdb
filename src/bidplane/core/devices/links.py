"""
The links of a lease's devices, compared with those when its node was created.

A PCIe link that trained down, or a lost NVLink, costs half the throughput and crashes nothing, so
the agent that pays for the devices must be told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from bidplane.api import labels
from bidplane.api.kinds import Object

_FIELDS = {"lanes": labels.WIDTH_ATTRIBUTE, "nvlinks": labels.NVLINKS_ATTRIBUTE}

Links = dict[str, dict[str, int]]  # by device: PCIe lanes, and NVLinks to a peer


def links_of(devices: Iterable[Object]) -> Links:
    """Return the links of devices in a ResourceSlice, as far as their attributes give them."""
    return {
        device["name"]: {
            field: value
            for field, name in _FIELDS.items()
            if isinstance(value := _value(device, name), int)
        }
        for device in devices
        if device.get("attributes")
    }


def _value(device: Object, name: str) -> Any:
    return ((device.get("attributes") or {}).get(name) or {}).get("int")


def text(links: Links) -> str:
    """Return links as the text of an annotation."""
    return msgspec.json.encode(links, order="sorted").decode()


def read(node: Object) -> Links:
    """Return the links when a lease's node was created; {} if it has no readable annotation."""
    annotation = (node["metadata"].get("annotations") or {}).get(labels.LINKS_AT_START, "")
    try:
        return msgspec.json.decode(annotation or "{}", type=Links)
    except msgspec.MsgspecError:
        return {}


def problems(at_start: Links, current: Links) -> list[str]:
    """Return a sentence for each link that got worse, in the order of devices."""
    sentences = []
    for device, links in sorted(current.items()):
        earlier = at_start.get(device) or {}
        if links.get("lanes", 0) < earlier.get("lanes", 0) and "lanes" in links:
            sentences.append(
                f"{device}: its PCIe link fell from x{earlier['lanes']} to x{links['lanes']}"
            )
        if links.get("nvlinks", 0) < earlier.get("nvlinks", 0) and "nvlinks" in links:
            lost = earlier["nvlinks"] - links["nvlinks"]
            sentences.append(
                f"{device}: {lost} of {earlier['nvlinks']} NVLinks to each peer are lost"
            )
    return sentences


def differ(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Return whether two slices' specs give the same devices different attributes."""
    return _attributes(first) != _attributes(second)


def _attributes(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {device["name"]: device.get("attributes") for device in spec.get("devices") or ()}
