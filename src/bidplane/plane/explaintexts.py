"""
The texts of `kubectl explain`, from a package that carries them.

Upstream's sentences are not ours to ship. Where the package kubernetes-validate is installed (`pip
install bidplane[explain]`) its definitions are read, once, when a client first asks.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from bidplane.wire.resources import release
from bidplane.wire.schema.openapi import Words

_PACKAGE = "kubernetes_validate"
_FOLDER = re.compile(r"v(\d+)\.(\d+)\.\d+-local")


class _Definitions(msgspec.Struct, frozen=True):
    definitions: dict[str, Words] = msgspec.field(name="$defs", default_factory=dict)


def find() -> Mapping[str, Words]:
    """Return the texts by the name of a definition; {} where the package is not installed."""
    package = importlib.util.find_spec(_PACKAGE)
    folders = (package.submodule_search_locations or ()) if package is not None else ()
    for folder in folders:
        if texts := read(Path(folder) / "kubernetes-json-schema", release()):
            return texts
    return {}


def read(folder: Path, release_text: str) -> Mapping[str, Words]:
    """Return the definitions of the newest release in `folder` not newer than `release_text`."""
    limit = tuple(int(part) for part in re.findall(r"\d+", release_text)[:2])
    folders = {
        (int(match[1]), int(match[2])): path
        for path in folder.glob("v*-local")
        if (match := _FOLDER.fullmatch(path.name))
    }
    usable = [version for version in folders if version <= limit]
    if not usable:
        return {}
    text = (folders[max(usable)] / "_definitions.json").read_bytes()
    return msgspec.json.decode(text, type=_Definitions).definitions
