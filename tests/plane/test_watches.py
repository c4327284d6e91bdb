"""What a watcher sees, from where, and when it is told to list again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bidplane.api.kinds import CONFIG_MAP, Kind
from bidplane.errors import Gone
from bidplane.kube.http import HttpClient

from .conftest import Endpoint, config_map

MAPS = "/api/v1/namespaces/{ns}/configmaps"
MERGE = "application/merge-patch+json"


def _said(events: list[dict[str, Any]]) -> list[str]:
    return [f"{e['type']} {e['object']['metadata'].get('name', '')}".strip() for e in events]


def _labelled(name: str, **labels: str) -> dict[str, object]:
    body = config_map(name)
    body["metadata"]["labels"] = labels
    return body


def test_a_watch_resumes_after_a_revision(endpoint: Endpoint) -> None:
    first = endpoint.ok("POST", MAPS, config_map("a"))["metadata"]["resourceVersion"]
    endpoint.ok("POST", MAPS, config_map("b"))
    endpoint.ok("PATCH", f"{MAPS}/a", {"data": {"k": "v"}}, media=MERGE)
    endpoint.ok("DELETE", f"{MAPS}/b")
    events = endpoint.watch(MAPS, seconds=1, resourceVersion=first, labelSelector="")
    mine = [e for e in events if e["object"]["metadata"].get("name") in ("a", "b")]
    assert _said(mine) == ["ADDED b", "MODIFIED a", "DELETED b"]
    revisions = [int(e["object"]["metadata"]["resourceVersion"]) for e in mine]
    assert revisions == sorted(set(revisions))


def test_changes_arrive_while_watching(endpoint: Endpoint) -> None:
    async def story(client: HttpClient) -> None:
        listing = await client.list(CONFIG_MAP, endpoint.namespace)
        seen: asyncio.Queue[str] = asyncio.Queue()

        async def watch() -> None:
            async for event in client.watch(
                CONFIG_MAP, endpoint.namespace, resource_version=listing.resource_version
            ):
                if event.object["metadata"].get("name") == "a":
                    seen.put_nowait(event.type)

        watching = asyncio.create_task(watch())
        await client.create(CONFIG_MAP, config_map("a"), endpoint.namespace)
        assert await asyncio.wait_for(seen.get(), 5) == "ADDED"
        await client.patch(CONFIG_MAP, "a", {"data": {"k": "v"}}, endpoint.namespace)
        assert await asyncio.wait_for(seen.get(), 5) == "MODIFIED"
        await client.delete(CONFIG_MAP, "a", endpoint.namespace)
        assert await asyncio.wait_for(seen.get(), 5) == "DELETED"
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)

    endpoint.run(story)


def test_too_old_a_revision_is_gone(endpoint: Endpoint, things: Kind) -> None:
    # Of a kind that came later than revision 1; a real server remembers all of the older ones.
    path = f"/apis/{things.api_version}/namespaces/{{ns}}/{things.plural}"
    events = endpoint.watch(path, resourceVersion="1")
    assert [(e["type"], e["object"].get("code")) for e in events] == [("ERROR", 410)]
    assert events[0]["object"]["reason"] == "Expired"

    async def story(client: HttpClient) -> None:
        with pytest.raises(Gone):
            async for _ in client.watch(things, endpoint.namespace, resource_version="1"):
                pass

    endpoint.run(story)


def test_a_selector_makes_objects_come_and_go(endpoint: Endpoint) -> None:
    start = endpoint.ok("POST", MAPS, _labelled("a", on="no"))["metadata"]["resourceVersion"]
    for value in ("yes", "yes", "no"):
        endpoint.ok(
            "PATCH",
            f"{MAPS}/a",
            {"metadata": {"labels": {"on": value}}, "data": {"v": value, "n": start + value}},
            media=MERGE,
        )
    endpoint.ok("PATCH", f"{MAPS}/a", {"metadata": {"labels": {"on": "yes"}}}, media=MERGE)
    endpoint.ok("PATCH", f"{MAPS}/a", {"data": {"n": "2"}}, media=MERGE)
    endpoint.ok("DELETE", f"{MAPS}/a")
    events = endpoint.watch(MAPS, seconds=1, resourceVersion=start, labelSelector="on=yes")
    assert _said(events) == ["ADDED a", "DELETED a", "ADDED a", "MODIFIED a", "DELETED a"]


def test_without_a_revision_what_is_there_comes_first(endpoint: Endpoint) -> None:
    endpoint.ok("POST", MAPS, _labelled("a", mine="yes"))
    endpoint.ok("POST", MAPS, _labelled("b", mine="yes"))
    events = endpoint.watch(MAPS, seconds=1, labelSelector="mine=yes")
    assert _said(events) == ["ADDED a", "ADDED b"]


def test_a_watch_list_ends_its_beginning_with_a_bookmark(endpoint: Endpoint) -> None:
    endpoint.ok("POST", MAPS, _labelled("a", mine="yes"))
    events = []
    for event in endpoint.events(
        MAPS,
        seconds=60,  # a real server may take seconds to be sure that it has seen everything
        labelSelector="mine=yes",
        sendInitialEvents="true",
        resourceVersionMatch="NotOlderThan",
        allowWatchBookmarks="true",
    ):
        events.append(event)
        if len(events) == 2:
            endpoint.ok("POST", MAPS, _labelled("b", mine="yes"))
        elif len(events) == 3:
            break
    assert _said(events) == ["ADDED a", "BOOKMARK", "ADDED b"]
    meta = events[1]["object"]["metadata"]
    assert meta["annotations"]["k8s.io/initial-events-end"] == "true"
    first = int(events[0]["object"]["metadata"]["resourceVersion"])
    assert int(meta["resourceVersion"]) >= first


def test_initial_events_need_a_match(endpoint: Endpoint) -> None:
    answer = endpoint.call("GET", MAPS, watch="true", sendInitialEvents="true", timeoutSeconds=1)
    assert answer.code == 422
    assert "sendInitialEvents requires setting resourceVersionMatch" in answer.body["message"]


def test_a_revision_from_the_future(endpoint: Endpoint) -> None:
    answer = endpoint.call("GET", MAPS, resourceVersion=str(1 << 50))
    assert answer.code == 504
    causes = answer.body["details"]["causes"]
    assert causes[0]["reason"] == "ResourceVersionTooLarge"


def test_watching_one_object_by_name(endpoint: Endpoint) -> None:
    start = endpoint.ok("POST", MAPS, config_map("a"))["metadata"]["resourceVersion"]
    endpoint.ok("POST", MAPS, config_map("b"))
    endpoint.ok("PATCH", f"{MAPS}/a", {"data": {"k": "v"}}, media=MERGE)
    events = endpoint.watch(MAPS, seconds=1, resourceVersion=start, fieldSelector="metadata.name=a")
    assert _said(events) == ["MODIFIED a"]


def test_a_table_is_watched_row_by_row(endpoint: Endpoint) -> None:
    start = endpoint.ok("POST", MAPS, config_map("a"))["metadata"]["resourceVersion"]
    endpoint.ok("POST", MAPS, config_map("b", k="v"))
    endpoint.ok("POST", MAPS, config_map("c"))
    endpoint._http.headers["Accept"] = "application/json;as=Table;v=v1;g=meta.k8s.io"
    events = endpoint.watch(
        MAPS, seconds=1, resourceVersion=start, fieldSelector="metadata.name!=kube-root-ca.crt"
    )
    assert [e["object"]["kind"] for e in events] == ["Table", "Table"]
    assert [e["object"]["rows"][0]["cells"][:2] for e in events] == [["b", 1], ["c", 0]]
    assert events[0]["object"]["columnDefinitions"][0]["name"] == "Name"
    assert not events[1]["object"]["columnDefinitions"]
