"""OpenAPI v2, which kubectl falls back on, and the Service that clients take for granted."""

from __future__ import annotations

from typing import Any

import pytest

from bidplane.api.kinds import Kind

from .conftest import Endpoint

PROTOBUF = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"


def _fields(content: bytes) -> list[tuple[int, Any]]:
    """The fields of a protobuf message, read by the rules of the wire format alone."""
    fields: list[tuple[int, Any]] = []
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = content[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(content):
        tag = varint()
        if tag & 7 == 0:
            fields.append((tag >> 3, varint()))
        else:
            assert tag & 7 == 2, tag
            size = varint()
            fields.append((tag >> 3, content[at : at + size]))
            at += size
    return fields


def _named(content: bytes, number: int) -> dict[str, bytes]:
    entries = [dict(_fields(value)) for field, value in _fields(content) if field == number]
    return {entry[1].decode(): entry[2] for entry in entries}


def _raw(endpoint: Endpoint, accept: str) -> tuple[str, bytes]:
    response = endpoint._http.get(f"{endpoint.url}/openapi/v2", headers={"Accept": accept})
    assert response.status_code == 200
    return response.headers["content-type"], response.content


def test_the_document_is_served_as_json(endpoint: Endpoint) -> None:
    document = endpoint.ok("GET", "/openapi/v2")
    assert document["swagger"] == "2.0"
    path = "/api/v1/namespaces/{namespace}/configmaps/{name}"
    patch = document["paths"][path]["patch"]
    kind = {"group": "", "kind": "ConfigMap", "version": "v1"}
    assert patch["x-kubernetes-group-version-kind"] == kind
    assert "fieldValidation" in [one.get("name") for one in patch["parameters"]]
    port = document["definitions"]["io.k8s.api.core.v1.ContainerPort"]
    assert port["properties"]["containerPort"]["format"] == "int32"
    either = document["definitions"]["io.k8s.apimachinery.pkg.util.intstr.IntOrString"]
    assert (either["type"], either["format"]) == ("string", "int-or-string")
    spec = document["definitions"]["io.k8s.api.apps.v1.DeploymentSpec"]["properties"]
    assert spec["template"]["$ref"] == "#/definitions/io.k8s.api.core.v1.PodTemplateSpec"
    other = endpoint._http.get(f"{endpoint.url}/openapi/v2", headers={"Accept": "text/html"})
    assert other.status_code == 406


@pytest.mark.parametrize(
    "accept", [PROTOBUF, "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"]
)
def test_the_document_is_served_as_protobuf(endpoint: Endpoint, accept: str) -> None:
    media, content = _raw(endpoint, accept)
    assert media == PROTOBUF
    document = dict(_fields(content))
    assert document[1] == b"2.0"
    definitions = _named(document[9], 1)
    port = definitions["io.k8s.api.core.v1.ContainerPort"]
    number = _named(dict(_fields(port))[25], 1)["containerPort"]
    assert dict(_fields(number))[2] == b"int32"
    assert dict(_fields(dict(_fields(number))[22]))[1] == b"integer"
    item = _named(document[8], 2)["/api/v1/namespaces/{namespace}/configmaps/{name}"]
    patch = dict(_fields(item))[8]
    extensions = _named(patch, 13)
    assert b"ConfigMap" in extensions["x-kubernetes-group-version-kind"]


def test_custom_kinds_are_in_the_document(endpoint: Endpoint, things: Kind) -> None:
    group = ".".join(reversed(things.group.split(".")))

    def told() -> Any:
        return endpoint.ok("GET", "/openapi/v2")["definitions"].get(f"{group}.v1.Thing")

    thing = endpoint.eventually(told)
    assert thing["properties"]["spec"]["properties"]["size"]["type"] == "integer"


def test_the_service_kubernetes_is_there(endpoint: Endpoint) -> None:
    def there() -> bool:
        return endpoint.call("GET", "/api/v1/namespaces/default/services/kubernetes").code == 200

    endpoint.eventually(there)
    service = endpoint.ok("GET", "/api/v1/namespaces/default/services/kubernetes")
    assert service["metadata"]["labels"] == {"component": "apiserver", "provider": "kubernetes"}
    spec = service["spec"]
    assert (spec["type"], spec["clusterIP"]) == ("ClusterIP", "10.96.0.1")
    assert [(port["name"], port["port"]) for port in spec["ports"]] == [("https", 443)]
    assert "selector" not in spec


def test_nothing_is_behind_the_service_kubernetes_of_a_plane(plane: Endpoint) -> None:
    slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
    (slice_,) = plane.ok("GET", slices)["items"]
    assert slice_["metadata"]["labels"] == {"kubernetes.io/service-name": "kubernetes"}
    assert slice_["endpoints"] == []
    assert "subsets" not in plane.ok("GET", "/api/v1/namespaces/default/endpoints/kubernetes")
    # Its address is nobody else's, even when it was deleted.
    services = "/api/v1/namespaces/default/services"
    taken = {"metadata": {"name": "x"}, "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 1}]}}
    assert plane.call("POST", services, taken).code == 422
