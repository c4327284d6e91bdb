"""
Behaviour tests run against an `endpoint`: a plane of ours over HTTPS, and with the marker `kube`
a real kube-apiserver. The same assertions must hold on both.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import ssl
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest
import uvicorn

from bidplane.api.kinds import Kind
from bidplane.http.server.connection import HttpConnection
from bidplane.kube.http import HttpClient
from bidplane.machinery.clock import SystemClock
from bidplane.plane import Planes
from bidplane.runtime.identity.clientcerts import Signer
from bidplane.runtime.identity.credentials import Identity, Tokens
from bidplane.testing.certificates import Authority

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
PATIENCE = 20.0  # seconds for what happens in the background


class Answer(NamedTuple):
    code: int
    body: Any
    headers: Mapping[str, str]


class Endpoint:
    """One Kubernetes API, and a namespace of the test's own in it."""

    def __init__(self, url: str, token: str, ca_file: Path) -> None:
        self.url, self.token, self.ca_file = url, token, ca_file
        self.namespace = ""
        self._http = httpx2.Client(
            verify=_context(ca_file),
            # A real server may compress a watch-list, and then its later events come late.
            headers={"Authorization": f"Bearer {token}", "Accept-Encoding": "identity"},
            timeout=60,
            trust_env=False,
        )

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        media: str = "application/json",
        accept: str = "application/json",
        **params: Any,
    ) -> Answer:
        """One request; `{ns}` in the path is the test's namespace."""
        response = self._http.request(
            method,
            self.url + path.replace("{ns}", self.namespace),
            params=params,
            json=body if body is not None and not isinstance(body, bytes) else None,
            content=body if isinstance(body, bytes) else None,
            headers={"Accept": accept, **({"Content-Type": media} if body is not None else {})},
        )
        is_json = response.headers["content-type"].startswith("application/json")
        return Answer(
            response.status_code, response.json() if is_json else response.text, response.headers
        )

    def raw(
        self,
        method: str,
        path: str,
        body: Any,
        headers: list[tuple[str, str]],
        media: str = "application/json",
        **params: Any,
    ) -> Answer:
        """As `call`, with headers of the test's own; one that is sent replaces ours."""
        ours = (
            []
            if any(key == "Authorization" for key, _ in headers)
            else [("Authorization", f"Bearer {self.token}")]
        )
        request = self._http.build_request(
            method,
            self.url + path.replace("{ns}", self.namespace),
            params=params,
            content=None if body is None else json.dumps(body).encode(),
        )
        request.headers = httpx2.Headers(
            [
                *[(k, v) for k, v in request.headers.items() if k != "authorization"],
                *([] if body is None else [("Content-Type", media)]),
                *ours,
                *headers,
            ]
        )
        response = self._http.send(request)
        is_json = response.headers.get("content-type", "").startswith("application/json")
        return Answer(
            response.status_code, response.json() if is_json else response.text, response.headers
        )

    def ok(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        """As `call`, for what must succeed."""
        answer = self.call(method, path, body, **options)
        assert answer.code < 300, answer.body
        return answer.body

    def watch(self, path: str, *, seconds: int = 2, **params: Any) -> list[dict[str, Any]]:
        """The events of a watch that ends after `seconds`."""
        return list(self.events(path, seconds=seconds, **params))

    def events(self, path: str, *, seconds: int = 10, **params: Any) -> Iterator[dict[str, Any]]:
        query = {"watch": "true", "timeoutSeconds": seconds, **params}
        url = self.url + path.replace("{ns}", self.namespace)
        with self._http.stream("GET", url, params=query) as response:
            if response.status_code >= 400:
                yield {"type": "ERROR", "object": json.loads(response.read())}
                return
            for line in response.iter_lines():
                yield json.loads(line)

    def run(self, story: Callable[[HttpClient], Awaitable[None]]) -> None:
        """Run a coroutine with the product's own client."""

        async def main() -> None:
            client = HttpClient(self.url, token=self.token, ca_file=str(self.ca_file))
            try:
                await story(client)
            finally:
                await client.close()

        asyncio.run(main())

    def eventually(self, condition: Callable[[], Any]) -> Any:
        """What `condition` returns, once that is true."""
        end = time.monotonic() + PATIENCE
        while True:
            found = condition()
            if found or time.monotonic() > end:
                assert found
                return found
            time.sleep(0.02)


def _context(ca_file: Path) -> Any:
    return ssl.create_default_context(cafile=str(ca_file))


class Embedded(NamedTuple):
    """Planes behind uvicorn in a thread of its own."""

    planes: Planes
    tokens: Tokens
    url: str
    ca_file: Path
    loop: asyncio.AbstractEventLoop

    def wait(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    def make(self, name: str, **identity: Any) -> Endpoint:
        uid = self.wait(self.planes.create(name))
        who = Identity(plane=name, uid=uid, user=name, expires=int(time.time()) + 3600)
        return Endpoint(f"{self.url}/planes/{name}", self.tokens.issue(who), self.ca_file)


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    folder = tmp_path_factory.mktemp("planes")
    certificate, key = Authority(folder).issue_server("plane")
    tokens = Tokens(secrets.token_bytes(32))
    ca = (folder / "ca.crt").read_text()
    signer = Signer(folder / "ca.crt", folder / "ca.key")
    planes = Planes(folder / "planes", clock=SystemClock(), tokens=tokens, ca=ca, signer=signer)
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        planes,
        ssl_certfile=str(certificate),
        ssl_keyfile=str(key),
        ssl_ca_certs=str(folder / "ca.crt"),
        ssl_cert_reqs=ssl.CERT_OPTIONAL,
        http=HttpConnection,
        log_level="warning",
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    started: list[asyncio.AbstractEventLoop] = []

    async def main() -> None:
        started.append(asyncio.get_running_loop())
        await server.serve(sockets=[listener])
        await planes.close()

    # Client and server share one interpreter here; by default each hand-over may take 5 ms.
    sys.setswitchinterval(0.0002)
    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    while not server.started:
        time.sleep(0.01)
    url = f"https://127.0.0.1:{listener.getsockname()[1]}"
    yield Embedded(planes, tokens, url, folder / "ca.crt", started[0])
    server.should_exit = True
    thread.join(10)


@pytest.fixture(
    params=["embedded", pytest.param("kube", marks=pytest.mark.kube)], ids=["embedded", "kube"]
)
def endpoint(request: pytest.FixtureRequest) -> Iterator[Endpoint]:
    if request.param == "embedded":
        found = request.getfixturevalue("embedded").make("tests")
    else:
        cluster = request.getfixturevalue("cluster")
        found = Endpoint(cluster.url, cluster.token, cluster.ca_file)
        _let_controllers_work(found)
    found.namespace = f"t-{secrets.token_hex(4)}"
    found.ok("POST", "/api/v1/namespaces", {"metadata": {"name": found.namespace}})
    account = "/api/v1/namespaces/{ns}/serviceaccounts/default"  # comes by itself, soon
    found.eventually(lambda: found.call("GET", account).code == 200)
    yield found
    found.call("DELETE", f"/api/v1/namespaces/{found.namespace}")


def _let_controllers_work(endpoint: Endpoint) -> None:
    """Namespaces and garbage are emptied by controllers, which need rights to all kinds."""
    binding = {
        "metadata": {"name": "tests-controllers"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "cluster-admin",
        },
        "subjects": [
            {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "User",
                "name": "system:kube-controller-manager",
            }
        ],
    }
    path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
    assert endpoint.call("POST", path, binding).code in (201, 409)


@pytest.fixture
def things(endpoint: Endpoint) -> Iterator[Kind]:
    """A custom kind, `Thing`, with a schema, a status and columns."""
    suffix = secrets.token_hex(3)
    kind = Kind(f"t{suffix}.bidplane.test", "v1", "Thing", "things")
    endpoint.ok("POST", CRDS, thing_definition(kind))
    endpoint.eventually(lambda: endpoint.call("GET", f"/apis/{kind.api_version}").code == 200)
    path = f"/apis/{kind.api_version}/namespaces/{{ns}}/things"
    endpoint.eventually(lambda: endpoint.call("GET", path).code == 200)
    yield kind
    endpoint.call("DELETE", f"{CRDS}/things.{kind.group}")


def thing_definition(kind: Kind, **spec: Any) -> dict[str, Any]:
    size = {"type": "integer", "minimum": 1, "maximum": 10}
    colour = {"type": "string", "enum": ["red", "green"], "default": "red"}
    code = {"type": "string", "pattern": "^[a-z]+$"}
    free = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {
        "type": "object",
        "required": ["spec"],
        "properties": {
            "spec": {
                "type": "object",
                "required": ["size"],
                "properties": {"size": size, "colour": colour, "code": code, "free": free},
            },
            "status": {"type": "object", "properties": {"phase": {"type": "string"}}},
        },
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{kind.group}"},
        "spec": {
            "group": kind.group,
            "scope": "Namespaced",
            "names": {"plural": kind.plural, "kind": kind.kind, "shortNames": ["th"]},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [
                        {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
                        {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
                    ],
                }
            ],
            **spec,
        },
    }


@pytest.fixture
def plane(embedded: Embedded) -> Iterator[Endpoint]:
    """A fresh plane of ours alone, for what only we have."""
    name = f"p-{secrets.token_hex(4)}"
    found = embedded.make(name)
    found.namespace = "default"
    yield found
    embedded.wait(embedded.planes.delete(name))


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name},
        **({"data": data} if data else {}),
    }


def pod(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "main", "image": "busybox:1"}], **spec},
    }
