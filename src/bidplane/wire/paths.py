"""Parsing of request paths into group, version, namespace, resource and name."""

from __future__ import annotations

from urllib.parse import unquote

import msgspec


class RequestTarget(msgspec.Struct, frozen=True):
    """`/apis/GROUP/VERSION/namespaces/NAMESPACE/PLURAL/NAME/SUBRESOURCE`, parsed."""

    group: str
    version: str
    plural: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    rest: str = ""  # what follows the subresource (pods/proxy/…)


def target(path: str) -> RequestTarget | None:
    """The resource a path names, or None (discovery, OpenAPI, health)."""
    parts = path.strip("/").split("/")
    if "%" in path:
        parts = [unquote(part) for part in parts]
    if parts[0] == "api" and len(parts) >= 3:
        group, version, parts = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) >= 4:
        group, version, parts = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace = ""
    # `namespaces/NAME`, `namespaces/NAME/status` and `…/finalize` are about the Namespace itself.
    if parts[0] == "namespaces" and len(parts) >= 3 and parts[2] not in ("status", "finalize"):
        namespace, parts = parts[1], parts[2:]
    if not all(parts[:2]):
        return None
    plural, name, subresource, *rest = [*parts, "", "", ""][: max(3, len(parts))]
    return RequestTarget(
        group, version, plural, namespace, name, subresource, "/".join(filter(None, rest))
    )
