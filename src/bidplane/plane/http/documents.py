"""What a plane says about itself: version, discovery, OpenAPI. Kept until a CRD changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bidplane.plane import prose
from bidplane.plane.http.message import Answer, Request, encode
from bidplane.plane.plane import Plane
from bidplane.wire import discovery, negotiate, openapi, resources, status

_ROOT = ("/api", "/apis", "/openapi/v3", "/version", "/healthz", "/livez", "/readyz")
# Planes that serve the same resources have the same documents: at 1,000 planes, one copy.
_shared: dict[tuple[Any, ...], dict[Any, bytes]] = {}
_SHARED_LIMIT = 64


def find(plane: Plane, request: Request) -> Answer | None:
    """The document at the path of `request`, or None when it is about objects."""
    path = request.path.rstrip("/") or "/"
    parts = path.strip("/").split("/")
    if request.method not in ("GET", "HEAD"):
        return None
    if path == "/":
        return _kept(plane, "root", lambda: {"paths": sorted(_ROOT)})
    if path == "/version":
        return _kept(plane, "version", _version)
    if parts[0] == "openapi":
        return _openapi(plane, request, parts)
    if path in ("/api", "/apis"):
        core = path == "/api"
        if negotiate.aggregated(request.accept):
            said = _kept(
                plane,
                ("aggregated", core),
                lambda: discovery.aggregated(discovery.groups(plane.registry), core=core),
            )
            said.headers = [
                (b"content-type", discovery.AGGREGATED.encode()),
                (b"vary", b"Accept"),
            ]
            return said
        if core:
            return _kept(plane, "/api", lambda: discovery.api_versions(""))
        groups = discovery.groups
        return _kept(plane, "/apis", lambda: discovery.group_list(groups(plane.registry)))
    if parts[0] == "apis" and len(parts) == 2:
        return _kept(plane, path, lambda: _group(plane, parts[1]))
    if (parts[0], len(parts)) in (("api", 2), ("apis", 3)):
        group, version = ("", parts[1]) if parts[0] == "api" else (parts[1], parts[2])
        return _kept(plane, path, lambda: _version_list(plane, group, version))
    return None


def _documents(plane: Plane) -> dict[Any, bytes]:
    if not plane.registry.documents:
        at = tuple(sorted(plane.registry.custom, key=lambda found: found.qualified))
        if at not in _shared and len(_shared) >= _SHARED_LIMIT:
            _shared.clear()
        plane.registry.documents = _shared.setdefault(at, {})
    return plane.registry.documents


def _kept(plane: Plane, at: Any, make: Callable[[], Any]) -> Answer:
    held = _documents(plane)
    if at not in held:
        held[at] = encode(make())
    return Answer(held[at])


def _group(plane: Plane, name: str) -> dict[str, Any]:
    groups = discovery.groups(plane.registry)
    if name not in groups:
        raise status.no_such_path()
    return discovery.group(name, groups)


def _version_list(plane: Plane, group: str, version: str) -> dict[str, Any]:
    found = discovery.groups(plane.registry).get(group, {}).get(version)
    if not found:
        raise status.no_such_path()
    return discovery.resource_list(found)


def _version() -> dict[str, Any]:
    release = resources.release()
    major, minor, _ = release.removeprefix("v").split(".", 2)
    return {
        "major": major,
        "minor": minor,
        "emulationMajor": major,
        "emulationMinor": minor,
        "gitVersion": f"{release}+bidplane",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "",
        "platform": "",
    }


def _openapi(plane: Plane, request: Request, parts: list[str]) -> Answer:
    if parts[1:2] != ["v3"]:
        # /openapi/v2 is a fallback that every supported client does without.
        raise status.no_such_path()
    held = _documents(plane)
    if ("openapi", "") not in held:
        words = prose.find()
        made = {
            openapi.path_of(found[0]): openapi.document(found, words)
            for versions in discovery.groups(plane.registry).values()
            for found in versions.values()
        }
        for path, body in made.items():
            held["openapi", path] = body
        held["openapi", ""] = encode(openapi.index(made))
    if any(media.type.startswith("application/com.github.proto") for media in _first(request)):
        raise status.not_acceptable("application/json")
    wanted = ("openapi", "/".join(parts[2:]))
    if wanted not in held:
        raise status.no_such_path()
    said = Answer(held[wanted])
    if "hash" in request.query:
        said.headers.append((b"cache-control", b"public, immutable"))
    return said


def _first(request: Request) -> tuple[negotiate.Media, ...]:
    """Only a client that takes nothing but protobuf is refused."""
    accepted = negotiate.accepted(request.accept)
    json = any(media.type in ("application/json", "*/*") for media in accepted)
    return () if json else accepted
