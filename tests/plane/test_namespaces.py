"""A namespace ends with everything in it, whatever its object was made to say."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path
from typing import Any

import msgspec

from bidplane.machinery.clock import SystemClock
from bidplane.plane import Planes
from bidplane.plane.storage.feed import Key
from bidplane.runtime.identity.credentials import Tokens

from .conftest import Endpoint

SPACES = "/api/v1/namespaces"
MERGE = "application/merge-patch+json"


def _filled(endpoint: Endpoint) -> str:
    """Make a namespace with a Secret in it."""
    name = f"n-{secrets.token_hex(4)}"
    endpoint.ok("POST", SPACES, {"metadata": {"name": name}})
    secret = {"metadata": {"name": "key"}, "stringData": {"a": "b"}}
    endpoint.ok("POST", f"{SPACES}/{name}/secrets", secret)
    return name


def _end_and_make_again(endpoint: Endpoint, name: str) -> list[str]:
    """Delete a namespace, make it again, and return the names of the Secrets in it."""
    path = f"{SPACES}/{name}"
    endpoint.ok("DELETE", path)
    endpoint.eventually(lambda: endpoint.call("GET", path).code == 404)
    endpoint.ok("POST", SPACES, {"metadata": {"name": name}})
    secrets_ = endpoint.ok("GET", f"{path}/secrets")["items"]
    endpoint.ok("DELETE", path)
    return [secret["metadata"]["name"] for secret in secrets_]


def test_replacing_a_namespace_keeps_its_finalizers(endpoint: Endpoint) -> None:
    name = _filled(endpoint)
    path = f"{SPACES}/{name}"
    whole = endpoint.ok("GET", path)
    for body in (
        {"metadata": {"name": name}},
        {"metadata": {"name": name}, "spec": {"finalizers": []}},
        {"metadata": {"name": name}, "spec": {"finalizers": ["a.test/b"]}},
        {**whole, "spec": {}, "metadata": {**whole["metadata"], "resourceVersion": ""}},
    ):
        assert endpoint.ok("PUT", path, body)["spec"] == {"finalizers": ["kubernetes"]}
    patched = endpoint.ok("PATCH", path, {"spec": {"finalizers": None}}, media=MERGE)
    assert patched["spec"] == {"finalizers": ["kubernetes"]}
    patched = endpoint.ok("PATCH", f"{path}/status", {"spec": None}, media=MERGE)
    assert patched["spec"] == {"finalizers": ["kubernetes"]}
    assert _end_and_make_again(endpoint, name) == []


def test_only_finalize_changes_the_finalizers_of_a_namespace(endpoint: Endpoint) -> None:
    name = _filled(endpoint)
    path = f"{SPACES}/{name}"
    both = ["kubernetes", "a.test/hold"]
    whole = endpoint.ok("GET", path)
    body = {**whole, "spec": {"finalizers": both}}
    assert endpoint.ok("PUT", f"{path}/finalize", body)["spec"] == {"finalizers": both}
    stale = endpoint.call("PUT", f"{path}/finalize", body)
    assert (stale.code, stale.body["reason"]) == (409, "Conflict")
    wrong = {**whole, "spec": {"finalizers": "x"}}
    answer = endpoint.call("PUT", f"{path}/finalize", wrong)
    assert (answer.code, answer.body["reason"]) == (400, "BadRequest")
    endpoint.ok("DELETE", path)

    def held() -> bool:
        return endpoint.ok("GET", path)["spec"] == {"finalizers": ["a.test/hold"]}

    endpoint.eventually(held)
    assert endpoint.ok("GET", f"{path}/secrets")["items"] == []
    endpoint.ok("PUT", f"{path}/finalize", {"metadata": {"name": name}, "spec": {}})
    endpoint.eventually(lambda: endpoint.call("GET", path).code == 404)


def test_a_namespace_without_finalizers_is_emptied_all_the_same(plane: Endpoint) -> None:
    # Upstream leaves what is in it behind.
    name = _filled(plane)
    empty: dict[str, Any] = {"metadata": {"name": name}, "spec": {}}
    assert plane.ok("PUT", f"{SPACES}/{name}/finalize", empty)["spec"] == {}
    assert _end_and_make_again(plane, name) == []


def test_a_namespace_forced_to_end_leaves_nothing_behind(plane: Endpoint) -> None:
    # What many do to a namespace that hangs; upstream leaves what is in it behind.
    name = _filled(plane)
    path = f"{SPACES}/{name}"
    held = {"metadata": {"name": "held", "finalizers": ["a.test/hold"]}}
    plane.ok("POST", f"{path}/configmaps", held)
    plane.ok("DELETE", path)
    plane.ok("PUT", f"{path}/finalize", {"metadata": {"name": name}, "spec": {}})
    assert plane.call("GET", path).code == 404
    plane.ok("POST", SPACES, {"metadata": {"name": name}})
    plane.eventually(lambda: plane.ok("GET", f"{path}/secrets")["items"] == [])
    assert "deletionTimestamp" in plane.ok("GET", f"{path}/configmaps/held")["metadata"]


def test_what_an_earlier_release_left_behind_is_gone_when_a_plane_opens(tmp_path: Path) -> None:
    async def work() -> None:
        planes = Planes(tmp_path, clock=SystemClock(), tokens=Tokens(b"k" * 32), durable=False)
        await planes.create("lab")
        store = planes.plane("lab").store
        left = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "key", "namespace": "gone", "uid": "u"},
        }
        key = Key("secrets", "gone", "key")
        await store.put(key, msgspec.json.decode(msgspec.json.encode(left)))
        await planes.close()
        planes = Planes(tmp_path, clock=SystemClock(), tokens=Tokens(b"k" * 32), durable=False)
        store = planes.plane("lab").store
        for _ in range(1000):
            if store.get(key) is None:
                break
            await asyncio.sleep(0.01)
        assert store.get(key) is None
        await planes.close()

    asyncio.run(work())
