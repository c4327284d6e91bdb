"""
The form of response that a client requests by its Accept header.

JSON is the only encoding we send. A client that lists protobuf first lists JSON too; one that
accepts no form we have gets a 406.
"""

from __future__ import annotations

import functools

import msgspec

from bidplane.wire import status

JSON = "application/json"
PLAIN, TABLE, PARTIAL = "", "Table", "PartialObjectMetadata"
_WILD = ("*/*", "application/*", JSON)


class Media(msgspec.Struct, frozen=True):
    """`type` and parameters of one entry of an Accept header."""

    type: str
    form: str = ""  # as
    group: str = ""
    version: str = ""
    stream: str = ""


@functools.lru_cache(maxsize=256)
def accepted(header: str) -> tuple[Media, ...]:
    """The entries of an Accept header, in order."""
    media = []
    for entry in header.split(","):
        type_, *parts = [part.strip() for part in entry.split(";")]
        options = dict(part.partition("=")[::2] for part in parts)
        media.append(
            Media(
                type_.lower() or "*/*",
                options.get("as", ""),
                options.get("g", ""),
                options.get("v", ""),
                options.get("stream", ""),
            )
        )
    return tuple(media)


@functools.lru_cache(maxsize=256)
def form(header: str) -> str:
    """Return the requested form of objects: plain, a Table, or metadata only."""
    for media in accepted(header):
        if media.type not in _WILD:
            continue
        if not media.form:
            return PLAIN
        if media.group == "meta.k8s.io" and media.version == "v1":
            if media.form == TABLE:
                return TABLE
            if media.form in (PARTIAL, f"{PARTIAL}List"):
                return PARTIAL
    raise status.not_acceptable(JSON)


@functools.lru_cache(maxsize=256)
def aggregated(header: str) -> bool:
    """Return true if the header requests aggregated discovery, in a version we serve."""
    for media in accepted(header):
        if media.type not in _WILD:
            continue
        if not media.form:
            return False
        if media.form == "APIGroupDiscoveryList" and media.version == "v2":
            return media.group == "apidiscovery.k8s.io"
    raise status.not_acceptable(JSON)
