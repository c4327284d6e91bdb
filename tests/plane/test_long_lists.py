"""A list that is sent in chunks, as our own client reads it."""

from __future__ import annotations

from bidplane.api.kinds import CONFIG_MAP
from bidplane.kube.http import HttpClient
from bidplane.plane.http import forms

from .conftest import Endpoint, config_map

MAPS = "/api/v1/namespaces/{ns}/configmaps"


def test_every_form_of_a_list_in_chunks(plane: Endpoint) -> None:
    big = "x" * (forms._CHUNK_BYTES // 3)
    names = [f"m-{number}" for number in range(8)]
    for name in names:
        plane.ok("POST", MAPS, config_map(name, x=big))

    async def story(client: HttpClient) -> None:
        listing = await client.list(CONFIG_MAP, "default")
        found = {item["metadata"]["name"]: item["data"] for item in listing.items}
        assert all(found[name] == {"x": big} for name in names)

    plane.run(story)
    answer = plane.call("GET", MAPS)
    assert "content-length" not in answer.headers
    assert {item["metadata"]["name"] for item in answer.body["items"]} >= set(names)
    for form, rows in (("Table", "rows"), ("PartialObjectMetadataList", "items")):
        accept = f"application/json;as={form};v=v1;g=meta.k8s.io"
        body = plane.ok("GET", MAPS, accept=accept)
        assert body["kind"] == form
        assert len(body[rows]) == len(answer.body["items"])
        assert body["metadata"]["resourceVersion"] == answer.body["metadata"]["resourceVersion"]
