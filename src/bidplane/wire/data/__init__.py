"""
Tables of facts about Kubernetes' own kinds, recorded from a real server; README.md describes them.

Each is read once, on first use, and shared: do not change what is returned.
"""

from __future__ import annotations

import functools
import gzip
from importlib import resources as package
from typing import Any

import msgspec


def _read(name: str) -> dict[str, Any]:
    folder = package.files(__name__)
    plain = folder / name
    if plain.is_file():
        content = plain.read_bytes()
    else:
        # The generators compress a table past a size.
        content = gzip.decompress((folder / f"{name}.gz").read_bytes())
    return msgspec.json.decode(content, type=dict[str, Any])


@functools.cache
def resources() -> dict[str, Any]:
    """Return `release`, `groups` and `resources`, as in discovery and Table headers."""
    return _read("resources.json")


@functools.cache
def schemas() -> dict[str, Any]:
    """Return `release`, `kinds` (apiVersion/Kind → definition) and `definitions`."""
    return _read("schemas.json")


@functools.cache
def protobuf() -> dict[str, Any]:
    """Return `release`, `kinds` (apiVersion/Kind → message) and `messages`."""
    return _read("protobuf.json")


@functools.cache
def roles() -> dict[str, Any]:
    """Return the default `clusterroles`, `clusterrolebindings`, `roles`, `rolebindings`."""
    return _read("roles.json")


@functools.cache
def defaults() -> dict[str, Any]:
    """Return `release` and `kinds`: the defaults that the server sets, by storage."""
    return _read("defaults.json")
