"""The life of planes, who may reach them, and what only our server promises."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from bidplane.api import crds
from bidplane.api.kinds import AGENT, CONFIG_MAP, CRD, EVENT, NAMESPACE, POD
from bidplane.errors import ApiError, NotFound, Unavailable
from bidplane.kube.client import Object
from bidplane.machinery.clock import SystemClock
from bidplane.plane import Planes
from bidplane.plane.http.hosting import ForwardedResponse
from bidplane.runtime.identity.credentials import Identity, Tokens

from .conftest import Embedded, Endpoint, config_map, pod

TOKENS = Tokens(b"k" * 32)


def _planes(root: Path, **options: Any) -> Planes:
    return Planes(root, clock=SystemClock(), tokens=TOKENS, durable=False, **options)


def test_a_plane_is_born_with_the_usual_things(tmp_path: Path) -> None:
    async def story() -> None:
        planes = _planes(tmp_path, crds=lambda plane: crds.all_crds(), inline=True)
        uid = await planes.create("a")
        assert await planes.create("a") == uid == planes.uid("a")
        client = planes.client("a")
        spaces = await client.list(NAMESPACE)
        names = [found["metadata"]["name"] for found in spaces.items]
        assert names == ["default", "kube-node-lease", "kube-public", "kube-system"]
        assert len((await client.list(CRD)).items) == len(crds.all_crds())
        assert not (await client.list(AGENT)).items
        assert planes.names() == ["a"]
        await planes.close()

    asyncio.run(story())


def test_planes_do_not_see_each_other(tmp_path: Path) -> None:
    async def story() -> None:
        planes = _planes(tmp_path)
        assert await planes.create("a") != await planes.create("b")
        await planes.client("a").create(CONFIG_MAP, config_map("x"), "default")
        assert not (await planes.client("b").list(CONFIG_MAP)).items
        await planes.close()

    asyncio.run(story())


def test_a_plane_survives_a_restart(tmp_path: Path) -> None:
    async def story() -> None:
        planes = _planes(tmp_path)
        uid = await planes.create("a")
        client = planes.client("a")
        first = await client.create(CONFIG_MAP, config_map("x", k="v"), "default")
        await client.create(CONFIG_MAP, config_map("y"), "default")
        await client.delete(CONFIG_MAP, "y", "default")
        await planes.close()
        again = _planes(tmp_path)
        assert again.uid("a") == uid
        client = again.client("a")
        assert await client.get(CONFIG_MAP, "x", "default") == first
        # A watch goes on where it was, deletions included.
        version, seen = first["metadata"]["resourceVersion"], []
        async for event in client.watch(CONFIG_MAP, resource_version=version):
            seen.append((event.type, event.object["metadata"]["name"]))
            if len(seen) == 2:
                break
        assert seen == [("ADDED", "y"), ("DELETED", "y")]
        await again.close()

    asyncio.run(story())


def test_a_request_during_a_deletion_does_not_open_the_plane_again(tmp_path: Path) -> None:
    async def story() -> None:
        planes = _planes(tmp_path)
        await planes.create("a")
        client = planes.client("a")
        writes = [
            asyncio.create_task(
                client.create(CONFIG_MAP, {"metadata": {"name": f"m{n}"}}, "default")
            )
            for n in range(50)
        ]
        await asyncio.sleep(0)  # they are being committed
        deleting = asyncio.create_task(planes.delete("a"))
        refused = 0
        while not deleting.done():
            await asyncio.sleep(0)
            try:
                await client.list(POD)
            except NotFound:
                refused += 1
        await deleting
        await asyncio.gather(*writes, return_exceptions=True)
        assert refused
        assert planes.names() == []
        await planes.close()

    asyncio.run(story())
    assert list(tmp_path.iterdir()) == []


def test_a_deleted_plane_is_gone(tmp_path: Path) -> None:
    async def story() -> None:
        planes = _planes(tmp_path)
        uid = await planes.create("a")
        client = planes.client("a")
        listing = await client.list(POD)

        async def watch() -> int:
            count = 0
            async for _ in client.watch(POD, resource_version=listing.resource_version):
                count += 1
            return count

        watching = asyncio.create_task(watch())
        await asyncio.sleep(0)
        await planes.delete("a")
        assert await watching == 0
        assert planes.names() == []
        assert planes.uid("a") is None
        with pytest.raises(NotFound):
            await client.list(POD)
        await planes.delete("a")
        assert await planes.create("a") != uid
        await planes.delete("a")
        await planes.close()

    asyncio.run(story())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../x", "", ".", "A", "a/b", "a" * 64, "%2e%2e", "a\0b"])
def test_bad_names_of_planes(tmp_path: Path, name: str) -> None:
    async def story() -> None:
        planes = _planes(tmp_path / "root")
        with pytest.raises(ApiError):
            await planes.create(name)
        assert planes.uid(name) is None
        await planes.delete(name)
        await planes.close()

    asyncio.run(story())


def test_what_was_not_acknowledged_may_be_lost_and_nothing_else(tmp_path: Path) -> None:
    async def story() -> None:
        planes = _planes(tmp_path)
        await planes.create("a")
        client = planes.client("a")
        await client.create(CONFIG_MAP, config_map("kept"), "default")
        pending = asyncio.create_task(client.create(CONFIG_MAP, config_map("lost"), "default"))
        await asyncio.sleep(0)
        planes.abandon()
        with pytest.raises(Unavailable):
            await pending
        again = _planes(tmp_path)
        found = await again.client("a").list(CONFIG_MAP)
        assert "kept" in [item["metadata"]["name"] for item in found.items]
        await again.close()

    asyncio.run(story())


def test_admission_refuses_with_its_reasons(tmp_path: Path) -> None:
    asked: list[tuple[str, str, str]] = []

    def admit(plane: str, operation: str, kind: Any, new: Object, old: Object | None) -> list[str]:
        asked.append((plane, operation, kind.kind))
        return ["too many GPUs", "no money"] if new["metadata"]["name"] == "bad" else []

    async def story() -> None:
        planes = _planes(tmp_path, admit=admit, inline=True)
        await planes.create("a")
        client = planes.client("a")
        await client.create(CONFIG_MAP, config_map("good"), "default")
        await client.patch(CONFIG_MAP, "good", {"data": {"k": "v"}}, "default")
        with pytest.raises(ApiError, match="too many GPUs, no money") as caught:
            await client.create(CONFIG_MAP, config_map("bad"), "default")
        assert caught.value.code == 422
        await planes.close()

    asyncio.run(story())
    assert ("a", "CREATE", "ConfigMap") in asked
    assert ("a", "UPDATE", "ConfigMap") in asked


class _Clock(SystemClock):
    at = 1_000_000_000.0

    def now(self) -> float:
        return self.at


def test_old_events_are_swept(tmp_path: Path) -> None:
    clock = _Clock()

    async def story() -> None:
        planes = Planes(tmp_path, clock=clock, tokens=TOKENS, durable=False, inline=True)
        await planes.create("a")
        client = planes.client("a")

        async def tell(name: str) -> list[str]:
            event = {
                "metadata": {"name": name},
                "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"},
            }
            await client.create(EVENT, event, "default")
            for _ in range(3):
                await asyncio.sleep(0)
            found = (await client.list(EVENT, "default")).items
            return [item["metadata"]["name"] for item in found]

        assert await tell("a") == ["a"]
        clock.at += 1800
        assert await tell("b") == ["a", "b"]
        clock.at += 1801
        assert await tell("c") == ["b", "c"]
        await planes.close()

    asyncio.run(story())


def test_the_local_client_is_as_strict_as_the_other(tmp_path: Path) -> None:
    async def story() -> None:
        planes = _planes(tmp_path, inline=True)
        await planes.create("a")
        with pytest.raises(ApiError) as caught:
            await planes.client("a").create(CONFIG_MAP, config_map("x"))
        assert caught.value.code == 405
        await planes.close()

    asyncio.run(story())


# Over HTTP.


def test_no_token_no_answer(plane: Endpoint) -> None:
    del plane._http.headers["Authorization"]
    answer = plane.call("GET", "/api/v1/pods")
    assert answer.code == 401
    assert answer.body["reason"] == "Unauthorized"
    plane._http.headers["Authorization"] = "Bearer nonsense"
    assert plane.call("GET", "/api/v1/pods").code == 401


def test_an_expired_token(plane: Endpoint, embedded: Embedded) -> None:
    name = plane.url.rpartition("/")[2]
    uid = embedded.planes.uid(name) or ""
    old = Identity(plane=name, uid=uid, user="u", expires=int(time.time()) - 1)
    plane._http.headers["Authorization"] = f"Bearer {embedded.tokens.issue(old)}"
    answer = plane.call("GET", "/api/v1/pods")
    assert answer.code == 401
    assert "expired" in answer.body["message"]


def test_another_planes_token(plane: Endpoint, embedded: Embedded) -> None:
    other = embedded.make("other")
    plane._http.headers["Authorization"] = other._http.headers["Authorization"]
    assert plane.call("GET", "/api/v1/pods").code == 403


def test_the_owner_reaches_every_plane(plane: Endpoint, embedded: Embedded) -> None:
    owner = embedded.make("host")
    plane._http.headers["Authorization"] = owner._http.headers["Authorization"]
    assert plane.call("GET", "/api/v1/pods").code == 200


def test_the_token_of_a_deleted_plane(embedded: Embedded) -> None:
    gone = embedded.make("gone")
    embedded.wait(embedded.planes.delete("gone"))
    answer = gone.call("GET", "/api/v1/pods")
    assert answer.code == 401
    assert "is gone" in answer.body["message"]
    assert "new kubeconfig" in answer.body["message"]
    embedded.make("gone")
    assert gone.call("GET", "/api/v1/pods").code == 401


@pytest.mark.parametrize("path", ["/planes/../x", "/planes//api", "/planes/%2e%2e/api", "/x", "/"])
def test_paths_outside(embedded: Embedded, plane: Endpoint, path: str) -> None:
    plane.url = embedded.url
    assert plane.call("GET", path).code in (403, 404)


def test_deep_nesting_is_refused(plane: Endpoint) -> None:
    body = b'{"metadata":{"name":"a"},"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert plane.call("POST", "/api/v1/namespaces/default/configmaps", body).code == 400


def test_an_object_too_large(plane: Endpoint) -> None:
    body = pod("a")
    body["metadata"]["annotations"] = {"k": "v" * 200_000}
    body["spec"]["containers"][0]["args"] = ["x" * 1000] * 1600
    answer = plane.call("POST", "/api/v1/namespaces/default/pods", body)
    assert answer.code == 413, answer.body
    assert plane.call("GET", "/api/v1/namespaces/default/pods/a").code == 404


def test_a_pod_that_cannot_be_asked_says_why(plane: Endpoint) -> None:
    path = "/api/v1/namespaces/default/pods"
    plane.ok("POST", path, pod("a"))
    plane.ok("POST", path, pod("b", nodeName="n1"))
    for name, code, words in (
        ("a", 400, "pod a does not have a host assigned"),
        ("b", 501, "no node serves pods/proxy"),
        ("b:x", 400, 'invalid pod request "b:x"'),
        ("https:b:80", 400, "invalid pod request"),
        ("c:80", 404, 'pods "c" not found'),
    ):
        answer = plane.call("POST", f"{path}/{name}/proxy/x")
        assert (answer.code, words in answer.body["message"]) == (code, True), answer.body


class _Logs:
    async def logs(
        self, plane: str, pod: Object, container: str, params: Sequence[tuple[str, str]]
    ) -> AsyncIterator[bytes]:
        async def lines() -> AsyncIterator[bytes]:
            for line in (f"{plane} {container}\n".encode(), f"{params}\n".encode()):
                yield line

        return lines()

    async def tunnel(self, *_: object) -> None:
        raise NotImplementedError

    async def request(self, *_: object) -> ForwardedResponse:
        raise NotImplementedError


def test_logs_come_from_who_runs_the_pod(plane: Endpoint, embedded: Embedded) -> None:
    path = "/api/v1/namespaces/default/pods"
    plane.ok("POST", path, pod("a", nodeName="n1"))
    assert plane.call("GET", f"{path}/a/log").code == 501
    embedded.planes.pod_streams = _Logs()
    try:
        name = plane.url.rpartition("/")[2]
        said = plane.call("GET", f"{path}/a/log", follow="true", tailLines=5)
        assert said.body == f"{name} main\n{[('follow', 'true'), ('tailLines', '5')]}\n"
        assert plane.call("GET", f"{path}/a/log", container="x").code == 400
    finally:
        embedded.planes.pod_streams = None
