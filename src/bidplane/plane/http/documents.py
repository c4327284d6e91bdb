"""Documents about a plane: version, discovery, OpenAPI. Cached until a CRD changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bidplane.http.replies import Reply, encode
from bidplane.plane import explaintexts
from bidplane.plane.http.message import PlaneRequest
from bidplane.plane.plane import Plane
from bidplane.wire import discovery, negotiate, resources, status
from bidplane.wire.schema import gnostic, openapi, openapi_v2

_ROOT = ("/api", "/apis", "/openapi/v2", "/openapi/v3", "/version", "/healthz", "/livez", "/readyz")
# Planes that serve the same resources have the same documents: at 1,000 planes, one copy.
_shared: dict[tuple[Any, ...], dict[Any, bytes]] = {}
_SHARED_LIMIT = 64


def find(plane: Plane, request: PlaneRequest) -> Reply | None:
    """Return the document at the path of `request`, or None when the path is about objects."""
    path = request.path.rstrip("/") or "/"
    parts = path.strip("/").split("/")
    if request.method not in ("GET", "HEAD"):
        return None
    if path == "/":
        return _cached(plane, "root", lambda: {"paths": sorted(_ROOT)})
    if path == "/version":
        return _cached(plane, "version", _version)
    if parts[0] == "openapi":
        return _openapi(plane, request, parts)
    if path in ("/api", "/apis"):
        core = path == "/api"
        if negotiate.aggregated(request.accept):
            response = _cached(
                plane,
                ("aggregated", core),
                lambda: discovery.aggregated(discovery.groups(plane.registry), core=core),
            )
            response.headers = [
                (b"content-type", discovery.AGGREGATED.encode()),
                (b"vary", b"Accept"),
            ]
            return response
        if core:
            return _cached(plane, "/api", lambda: discovery.api_versions(""))
        groups = discovery.groups
        return _cached(plane, "/apis", lambda: discovery.group_list(groups(plane.registry)))
    if parts[0] == "apis" and len(parts) == 2:
        return _cached(plane, path, lambda: _group(plane, parts[1]))
    if (parts[0], len(parts)) in (("api", 2), ("apis", 3)):
        group, version = ("", parts[1]) if parts[0] == "api" else (parts[1], parts[2])
        return _cached(plane, path, lambda: _version_list(plane, group, version))
    return None


def _documents(plane: Plane) -> dict[Any, bytes]:
    if not plane.registry.documents:
        resource_key = tuple(sorted(plane.registry.custom, key=lambda resource: resource.qualified))
        if resource_key not in _shared and len(_shared) >= _SHARED_LIMIT:
            _shared.clear()
        plane.registry.documents = _shared.setdefault(resource_key, {})
    return plane.registry.documents


def _cached(plane: Plane, document_key: Any, make: Callable[[], Any]) -> Reply:
    cached_documents = _documents(plane)
    if document_key not in cached_documents:
        cached_documents[document_key] = encode(make())
    return Reply(cached_documents[document_key])


def _group(plane: Plane, name: str) -> dict[str, Any]:
    groups = discovery.groups(plane.registry)
    if name not in groups:
        raise status.no_such_path()
    return discovery.group(name, groups)


def _version_list(plane: Plane, group: str, version: str) -> dict[str, Any]:
    served = discovery.groups(plane.registry).get(group, {}).get(version)
    if not served:
        raise status.no_such_path()
    return discovery.resource_list(served)


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


def _openapi(plane: Plane, request: PlaneRequest, parts: list[str]) -> Reply:
    if parts[1:] == ["v2"]:
        return _openapi_v2(plane, request)
    if parts[1:2] != ["v3"]:
        raise status.no_such_path()
    cached_documents = _documents(plane)
    if ("openapi", "") not in cached_documents:
        texts = explaintexts.find()
        documents = {
            openapi.path_of(served[0]): openapi.document(served, texts)
            for versions in discovery.groups(plane.registry).values()
            for served in versions.values()
        }
        for path, body in documents.items():
            cached_documents["openapi", path] = body
        cached_documents["openapi", ""] = encode(openapi.index(documents))
    if any(
        media.type.startswith("application/com.github.proto") for media in _first_accepted(request)
    ):
        raise status.not_acceptable("application/json")
    document_key = ("openapi", "/".join(parts[2:]))
    if document_key not in cached_documents:
        raise status.no_such_path()
    response = Reply(cached_documents[document_key])
    if "hash" in request.query:
        response.headers.append((b"cache-control", b"public, immutable"))
    return response


def _openapi_v2(plane: Plane, request: PlaneRequest) -> Reply:
    """Return the one document of all resources, as JSON or as protobuf."""
    cached_documents, form = _documents(plane), _v2_form(request)
    if (form, "") not in cached_documents:
        document = openapi_v2.document(plane.registry, explaintexts.find())
        cached_documents[openapi_v2.JSON_TYPE, ""] = encode(document)
        cached_documents[openapi_v2.PROTOBUF_TYPE, ""] = gnostic.encode(document)
    response = Reply(cached_documents[form, ""])
    response.headers = [(b"content-type", form.encode()), (b"vary", b"Accept")]
    return response


def _v2_form(request: PlaneRequest) -> str:
    accepted = [media.type for media in negotiate.accepted(request.accept)]
    for media_type in accepted or ["*/*"]:
        if media_type in openapi_v2.PROTOBUF_ASKED:
            return openapi_v2.PROTOBUF_TYPE
        if media_type in (openapi_v2.JSON_TYPE, "application/*", "*/*"):
            return openapi_v2.JSON_TYPE
    raise status.not_acceptable(f"{openapi_v2.JSON_TYPE}, {openapi_v2.PROTOBUF_TYPE}")


def _first_accepted(request: PlaneRequest) -> tuple[negotiate.Media, ...]:
    """Only a client that takes nothing but protobuf is refused."""
    accepted = negotiate.accepted(request.accept)
    json = any(media.type in ("application/json", "*/*") for media in accepted)
    return () if json else accepted
