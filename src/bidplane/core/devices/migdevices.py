"""
MIG instances as ResourceSlices publish them: which device is which part of which GPU.

A part is a device of its own, named as its driver likes. Its attributes give its profile and its
GPU's UUID; the memory slices it consumes tell where on the GPU it begins.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from bidplane.api import labels
from bidplane.api.kinds import Object
from bidplane.api.lease import DeviceRef
from bidplane.core.devices import mig
from bidplane.core.devices.mig import Profile, Slot
from bidplane.wire.quantity import parse as parse_quantity

_MEMORY_SLICE = "memory-slice-"

Key = tuple[str, str, str]  # driver, the slice's pool, device


class MigDevice(msgspec.Struct, frozen=True):
    """A MIG instance that exists or could be created."""

    gpu: str  # the UUID of the card
    slot: Slot


def is_whole_gpu(device: Object) -> bool:
    """Return whether a slice's device is a GPU, and neither a part of one nor another device."""
    attributes = device.get("attributes") or {}
    kind = (attributes.get(labels.TYPE_ATTRIBUTE) or {}).get("string", "gpu")
    return labels.PRODUCT_ATTRIBUTE in attributes and kind == "gpu"


def of_slices(slices: Iterable[Object]) -> dict[Key, MigDevice]:
    """Return every part that the slices publish."""
    return {key: part for key, part, _ in _published_parts(slices)}


Cards = dict[str, dict[str, Profile]]  # by a GPU's UUID: what it can be cut into


def cards(slice_: Object) -> Cards:
    """
    Return the profiles of the GPUs whose parts are in one slice; a GPU's parts may be in several.
    """
    profiles_by_gpu: Cards = {}
    for _, part, device in _published_parts([slice_]):
        counts = {
            name: int(value["value"])
            for counters in device["consumesCounters"]
            for name, value in counters["counters"].items()
        }
        profile = Profile(
            compute=counts.get("compute-slices", 0),
            memory=sum(name.startswith(_MEMORY_SLICE) for name in counts),
            starts=(part.slot.start,),
            media="media-engines" in counts,
        )
        _add(profiles_by_gpu.setdefault(part.gpu, {}), part.slot.profile, profile)
    return profiles_by_gpu


def joined(parts_of_cards: Iterable[Cards]) -> Cards:
    """Merge the profiles that several slices give of the same GPUs."""
    merged: Cards = {}
    for some_cards in parts_of_cards:
        for gpu, profiles in some_cards.items():
            for name, profile in profiles.items():
                _add(merged.setdefault(gpu, {}), name, profile)
    return merged


def _add(profiles: dict[str, Profile], name: str, profile: Profile) -> None:
    starts = {*profile.starts, *(profiles[name].starts if name in profiles else ())}
    profiles[name] = msgspec.structs.replace(profile, starts=tuple(sorted(starts)))


@lru_cache(maxsize=256)  # the same few sizes, every second
def in_table(memory: str) -> bool:
    """Return whether a GPU with this memory has profiles in the built-in table."""
    try:
        return bool(mig.profiles(mig.gigabytes(int(parse_quantity(memory)))))
    except ValueError:  # BadGeometry, or no quantity
        return False


def on_host(devices: Sequence[DeviceRef], slices: Iterable[Object]) -> list[DeviceRef]:
    """
    Return leased devices of one machine, with each MIG instance named as in the host's slices.

    An instance that no slice publishes stays a share of its GPU.
    """
    instances = [device for device in devices if _is_instance(device)]
    published_instances = _instances_by_place(instances[0].node, slices) if instances else {}
    return [
        msgspec.structs.replace(device.whole, name=instance["name"])
        if (instance := published_instances.get(_place_of(device))) is not None
        else device
        for device in devices
    ]


def published(device: DeviceRef, slices: Iterable[Object]) -> Object | None:
    """Return the device of the host's slices that a leased instance is; None for other devices."""
    if not _is_instance(device):
        return None
    return _instances_by_place(device.node, slices).get(_place_of(device))


def _is_instance(device: DeviceRef) -> bool:
    """Return whether a device is a MIG instance: a share is a profile, or a part such as 0.3."""
    return bool(device.share) and not device.is_part


def shown_name(device: DeviceRef) -> str:
    """
    Return a leased device's name in its agent's plane; a part's has its size or profile, and where
    it starts.
    """
    if not device.share:
        return device.name
    share = re.sub(r"[^a-z0-9]+", "-", device.share)
    start = device.units[0] if device.units else device.slots[0]
    return f"{device.name}-{share}-{start}"


_Place = tuple[str, str, str, str, int]  # driver, pool, the GPU's name, profile, start


def _place_of(device: DeviceRef) -> _Place | None:
    """Return the key of a leased part; None for a whole GPU."""
    if not device.share:
        return None
    return device.driver, device.pool, device.name, device.share, min(device.slots or (-1,))


def _instances_by_place(node: str, slices: Iterable[Object]) -> dict[_Place | None, Object]:
    """Return the devices that a node publishes as MIG instances, by place."""
    node_slices = [slice_ for slice_ in slices if slice_["spec"].get("nodeName") == node]
    gpus = {
        (*_origin(slice_), _text(device, "uuid")): device["name"]
        for slice_ in node_slices
        for device in slice_["spec"].get("devices") or ()
        if _text(device, labels.TYPE_ATTRIBUTE) != "mig"
    }
    return {
        (driver, pool, gpus[driver, pool, part.gpu], part.slot.profile, part.slot.start): device
        for (driver, pool, _), part, device in _published_parts(node_slices)
        if (driver, pool, part.gpu) in gpus
    }


def _published_parts(slices: Iterable[Object]) -> Iterator[tuple[Key, MigDevice, Object]]:
    """Yield each MIG instance that slices publish: its key, its part and its device."""
    for slice_ in slices:
        for device in slice_["spec"].get("devices") or ():
            profile, gpu = _text(device, "profile"), _text(device, "parentUUID")
            starts = [
                int(name.removeprefix(_MEMORY_SLICE))
                for consumed in device.get("consumesCounters") or ()
                for name in consumed["counters"]
                if name.startswith(_MEMORY_SLICE)
            ]
            if _text(device, labels.TYPE_ATTRIBUTE) == "mig" and profile and gpu and starts:
                part = MigDevice(gpu, Slot(profile, min(starts)))
                yield (*_origin(slice_), device["name"]), part, device


def _origin(slice_: Object) -> tuple[str, str]:
    """Return the driver and the pool of a slice."""
    return slice_["spec"]["driver"], slice_["spec"]["pool"]["name"]


def _text(device: Object, name: str) -> str:
    value: Any = ((device.get("attributes") or {}).get(name) or {}).get("string", "")
    return value if isinstance(value, str) else ""
