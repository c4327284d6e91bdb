"""
MIG instances as ResourceSlices publish them: which device is which part of which GPU.

A part is a device of its own, named as its driver likes. What it is, it says in attributes (its
profile, its GPU's UUID); where on the GPU it begins, in the memory slices it takes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import msgspec

from bidplane.api import labels
from bidplane.api.kinds import Object
from bidplane.core import mig
from bidplane.core.mig import Profile, Slot
from bidplane.wire.quantity import parse as parse_quantity

_MEMORY_SLICE = "memory-slice-"

Key = tuple[str, str, str]  # driver, the slice's pool, device


class Part(msgspec.Struct, frozen=True):
    """One instance that could be made."""

    gpu: str  # the UUID of the card
    slot: Slot


def of_slices(slices: Iterable[Object]) -> dict[Key, Part]:
    """Every part that is published."""
    return {key: part for key, part, _ in _found(slices)}


Cards = dict[str, dict[str, Profile]]  # by a GPU's UUID: what it can be cut into


def cards(slice_: Object) -> Cards:
    """What the parts in one slice say of their GPUs; a GPU's parts may be in several."""
    found: Cards = {}
    for _, part, device in _found([slice_]):
        taken = {
            name: int(value["value"])
            for counters in device["consumesCounters"]
            for name, value in counters["counters"].items()
        }
        one = Profile(
            compute=taken.get("compute-slices", 0),
            memory=sum(name.startswith(_MEMORY_SLICE) for name in taken),
            starts=(part.slot.start,),
            media="media-engines" in taken,
        )
        _add(found.setdefault(part.gpu, {}), part.slot.profile, one)
    return found


def joined(some: Iterable[Cards]) -> Cards:
    found: Cards = {}
    for one in some:
        for gpu, profiles in one.items():
            for name, profile in profiles.items():
                _add(found.setdefault(gpu, {}), name, profile)
    return found


def _add(known: dict[str, Profile], name: str, profile: Profile) -> None:
    starts = {*profile.starts, *(known[name].starts if name in known else ())}
    known[name] = msgspec.structs.replace(profile, starts=tuple(sorted(starts)))


@lru_cache(maxsize=256)  # the same few sizes, every second
def in_table(memory: str) -> bool:
    """Whether a GPU with so much memory can be cut as a table has it."""
    try:
        return bool(mig.profiles(mig.gigabytes(int(parse_quantity(memory)))))
    except ValueError:  # BadGeometry, or no quantity
        return False


def on_host(lease: Object, slices: Iterable[Object]) -> Object:
    """
    The lease with each MIG instance called as the host's slices call it. One that nobody publishes
    stays what it was: a share of its GPU.
    """
    if not any(map(_is_instance, lease["spec"]["devices"])):
        return lease
    names = _names(lease, slices)
    devices = [
        {k: v for k, v in device.items() if k not in ("share", "slots")} | {"name": known["name"]}
        if (known := names.get(_place(device))) is not None
        else device
        for device in lease["spec"]["devices"]
    ]
    return {**lease, "spec": {**lease["spec"], "devices": devices}}


def published(lease: Object, device: Object, slices: Iterable[Object]) -> Object | None:
    """The device of the host's slices that a leased instance is; None for all else."""
    return _names(lease, slices).get(_place(device)) if _is_instance(device) else None


def _is_instance(device: Object) -> bool:
    """A share is a fraction, such as 1/2, or a MIG profile."""
    return bool(device.get("share")) and "/" not in device["share"]


def shown_name(device: Object) -> str:
    """What a leased device is called in its agent's plane: a part by what it is, and where."""
    if not device.get("share"):
        return str(device["name"])
    share = re.sub(r"[^a-z0-9]+", "-", device["share"])
    return f"{device['name']}-{share}-{next(iter(device['slots']))}"


_Place = tuple[str, str, str, str, int]  # driver, pool, the GPU's name, profile, start


def _place(device: Object) -> _Place | None:
    if not device.get("share"):
        return None
    start = min(device.get("slots") or (-1,))
    return device["driver"], device["pool"], device["name"], device["share"], start


def _names(lease: Object, slices: Iterable[Object]) -> dict[_Place | None, Object]:
    here = [one for one in slices if one["spec"].get("nodeName") == lease["spec"]["node"]]
    gpus = {
        (*_origin(one), _text(device, "uuid")): device["name"]
        for one in here
        for device in one["spec"].get("devices") or ()
        if _text(device, labels.TYPE_ATTRIBUTE) != "mig"
    }
    return {
        (driver, pool, gpus[driver, pool, part.gpu], part.slot.profile, part.slot.start): device
        for (driver, pool, _), part, device in _found(here)
        if (driver, pool, part.gpu) in gpus
    }


def _found(slices: Iterable[Object]) -> Iterator[tuple[Key, Part, Object]]:
    for one in slices:
        for device in one["spec"].get("devices") or ():
            profile, gpu = _text(device, "profile"), _text(device, "parentUUID")
            starts = [
                int(name.removeprefix(_MEMORY_SLICE))
                for taken in device.get("consumesCounters") or ()
                for name in taken["counters"]
                if name.startswith(_MEMORY_SLICE)
            ]
            if _text(device, labels.TYPE_ATTRIBUTE) == "mig" and profile and gpu and starts:
                part = Part(gpu, Slot(profile, min(starts)))
                yield (*_origin(one), device["name"]), part, device


def _origin(one: Object) -> tuple[str, str]:
    return one["spec"]["driver"], one["spec"]["pool"]["name"]


def _text(device: Object, name: str) -> str:
    value: Any = ((device.get("attributes") or {}).get(name) or {}).get("string", "")
    return value if isinstance(value, str) else ""
