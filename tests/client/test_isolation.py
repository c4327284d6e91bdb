"""
Agent A's credential against everything there is: nothing but its own opens, and nothing it
can read names B.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

import bidplane
from bidplane.client import config as configs

from . import routes
from .conftest import Place
from .test_mcp import stdio

pytestmark = pytest.mark.slow

# Words that only B's things contain.
B_POD, B_OWNER = "bravos-own-pod", "bravos-owner"


class Two:
    """A that looks, and B that has running and waiting work."""

    def __init__(self, place: Place) -> None:
        self.a_file = place.agent()
        self.b_file = place.agent("--owner", B_OWNER, "--team", "bravos-team")
        self.a, self.b = configs.read(self.a_file), configs.read(self.b_file)
        assert self.a.ca_data is not None
        self.trust = ssl.create_default_context(cadata=self.a.ca_data)
        addresses = json.loads((place.folder / "data" / "installation.json").read_text())
        self.exchange = (
            addresses["exchangeUrl"] if "exchangeUrl" in addresses else (addresses["exchange_url"])
        )

    def http(self, url: str, token: str) -> httpx2.Client:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx2.Client(
            base_url=url, headers=headers, verify=self.trust, timeout=30, trust_env=False
        )


@pytest.fixture(scope="module")
def two(place: Place) -> Iterator[Two]:
    agents = Two(place)
    pods = f"{agents.b.url}/api/v1/namespaces/default/pods"
    with agents.http(agents.b.url, agents.b.token) as http:
        for name, price in ((B_POD, "1.00"), (f"{B_POD}-waits", "0.01")):
            pod = {
                "metadata": {"name": name, "annotations": {"bidplane.dev/max-price": price}},
                "spec": {
                    "containers": [
                        {
                            "name": "main",
                            "image": "x",
                            "resources": {"limits": {"nvidia.com/gpu": "1"}},
                        }
                    ]
                },
            }
            assert http.post(pods, json=pod).status_code == 201
        deadline = time.monotonic() + 60
        while http.get(f"{pods}/{B_POD}").json()["status"].get("phase") != "Running":
            assert time.monotonic() < deadline
        yield agents
        for name in (B_POD, f"{B_POD}-waits"):
            http.delete(f"{pods}/{name}")


CLOSED = (401, 403, 404, 405)
# Of the exchange, what every agent may ask for: and it says nothing of others.
PUBLIC = ("/prices", "/prices/h100/history", "/leases", "/rounds", "/orders")


def test_every_first_word_of_the_address_is_tried_here() -> None:
    assert routes.first_words() == {
        "planes", "exchange", "bidplane", "api", "apis", "version", "openapi",
    }  # fmt: skip


def test_no_route_of_a_plane_opens_anothers(two: Two) -> None:
    """Every path that B's own discovery tells B of, and the host's."""
    tried = 0
    with two.http(two.a.root, two.a.token) as http:
        for plane in (two.b.agent, "host"):
            for path in _paths_of_a_plane(two):
                for method in routes.METHODS:
                    url = f"/planes/{plane}{path}"
                    answer = http.request(method, url, json={})
                    assert answer.status_code in CLOSED, (method, url, answer.text)
                    assert B_OWNER not in answer.text
                    assert B_POD in path or B_POD not in answer.text, (url, answer.text)
                    tried += 1
    assert tried > 1000


def _paths_of_a_plane(two: Two) -> Iterator[str]:
    yield from ("/", "/api", "/apis", "/version", "/openapi/v2", "/openapi/v3", "/metrics")
    with two.http(two.b.url, two.b.token) as http:
        for group in _groups(http, two.b.url):
            yield group
            for resource in http.get(two.b.url + group).json()["resources"]:
                name, _, below = resource["name"].partition("/")
                inside = "/namespaces/default" if resource["namespaced"] else ""
                object_name = B_POD if name == "pods" else "default"
                if below:
                    yield f"{group}{inside}/{name}/{object_name}/{below}"
                else:
                    yield f"{group}/{name}"
                    yield f"{group}{inside}/{name}/{object_name}"


def _groups(http: httpx2.Client, url: str) -> list[str]:
    return ["/api/v1"] + [
        f"/apis/{version['groupVersion']}"
        for group in http.get(f"{url}/apis").json()["groups"]
        for version in group["versions"]
    ]


def _request(http: Any, method: str, path: str, body: object) -> Any:
    """Send a request, and again when the exchange says that the agent asks too often."""
    arguments = {} if body is None else {"json": body}
    answer = http.request(method, path, **arguments)
    while answer.status_code == 429:
        time.sleep(int(answer.headers["Retry-After"]))
        answer = http.request(method, path, **arguments)
    return answer


def test_no_route_of_the_exchange_tells_of_another(two: Two) -> None:
    with two.http(two.b.root, two.b.token) as http:
        (mine, *_) = http.get(f"{two.b.url}/apis/bidplane.dev/v1alpha1/bids").json()["items"]
    bid = mine["metadata"]["uid"]
    values = {"pool": "h100", "number": "1", "uid": bid, "name": two.b.agent}
    bodies: tuple[dict[str, Any], ...] = (
        {},
        {"amount": "1", "key": "k", "to": two.a.agent},
        {"agent": two.b.agent, "gpus": 1, "maxPrice": "9", "id": "x", "key": "k"},
    )
    for place in (two.a.root, two.exchange):
        with two.http(place, two.a.token) as http:
            for method, path in routes.of_the_exchange(values):
                public = path.removeprefix("/exchange/v1") in PUBLIC
                for body in bodies if method != "GET" else [None]:
                    answer = _request(http, method, path, body)
                    if not public:
                        assert answer.status_code in CLOSED, (method, path, answer.text)
                    for word in (B_POD, B_OWNER, "bravos-team", bid):
                        assert word in path or word not in answer.text, (path, word)
        with two.http(place, two.a.token) as http:
            own = f"/exchange/v1/wallets/{two.a.agent}/fund"
            answer = http.post(own, json={"amount": "1", "key": "k"})
            assert answer.status_code == 403, "nobody fills its own wallet"


RENEWS_ITS_OWN = "POST", "kubeconfig"


def test_what_owners_do_is_for_owners(two: Two) -> None:
    with two.http(two.a.root, two.a.token) as http:
        for agent in (two.b.agent, two.a.agent, "host"):
            for method, path in routes.of_owners(agent):
                if agent == two.a.agent and (method, path.rpartition("/")[2]) == RENEWS_ITS_OWN:
                    continue
                body: dict[str, str] | None = None if method == "GET" else {}
                answer = http.request(method, path, json=body)
                assert answer.status_code in CLOSED, (method, path, answer.text)
                assert B_POD not in answer.text


def test_what_is_served_at_the_root_is_a_pods_own_plane(two: Two) -> None:
    with two.http(two.a.root, two.a.token) as http:
        for path in ("/api", "/api/v1/pods", "/apis", "/version", "/openapi/v3"):
            assert http.get(path).status_code == 404, "an agent's own credential names its plane"
    account = "/api/v1/namespaces/default/serviceaccounts/default/token"
    with two.http(two.a.url, two.a.token) as http:
        token = http.post(two.a.url + account, json={}).json()["status"]["token"]
    with two.http(two.a.root, token) as http:
        answer = http.get("/api/v1/namespaces/default/pods")
        assert answer.status_code == 403
        assert "system:serviceaccount:default:default" in answer.text
        assert http.get("/version").status_code == 200
        other = f"/planes/{two.b.agent}"
        for path in (f"{other}/version", f"{other}/api/v1/pods", "/exchange/v1/prices"):
            assert http.get(path).status_code in (401, 403, 404), path


def test_no_path_leads_out_of_the_own_plane(two: Two) -> None:
    with two.http(two.a.root, two.a.token) as http:
        for path in (
            f"/planes/{two.a.agent}/../{two.b.agent}/api/v1/pods",
            f"/planes/{two.a.agent}/%2e%2e/{two.b.agent}/api/v1/pods",
            f"/planes/{two.a.agent}%2f..%2f{two.b.agent}/api/v1/pods",
            f"/planes//{two.b.agent}/api/v1/pods",
            f"//planes/{two.b.agent}/api/v1/pods",
        ):
            answer = http.get(path)
            assert B_POD not in answer.text, path
        # Nor do names of users: A is master of its own plane only.
        answer = http.get(
            f"/planes/{two.b.agent}/api/v1/pods", headers={"Impersonate-User": two.b.agent}
        )
        assert answer.status_code in (401, 403, 404)


def test_a_nodes_own_port_asks_too(two: Two, place: Place) -> None:
    with bidplane.Client(kubeconfig=two.b_file) as client:
        (lease,) = client.leases()
    nodes = json.loads(_host(place, "/api/v1/nodes").text)["items"]
    (node,) = [n for n in nodes if n["metadata"]["name"] == lease.node]
    port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
    pods = json.loads(_host(place, "/api/v1/pods").text)["items"]
    (pod,) = [p for p in pods if B_POD in p["metadata"]["name"] and p["spec"].get("nodeName")]
    metadata = pod["metadata"]
    values = {"namespace": metadata["namespace"], "name": metadata["name"]}
    values |= {"container": "main", "uid": metadata["uid"]}
    tried = list(routes.of_a_node(values))
    assert len(tried) > 8
    with two.http(f"https://127.0.0.1:{port}", two.a.token) as http:
        for method, path in tried:
            if path != "/healthz":
                answer = http.request(method, path)
                assert answer.status_code in CLOSED, (method, path)
                assert B_OWNER not in answer.text


def _host(place: Place, path: str) -> Any:
    from bidplane.machinery.clock import SystemClock
    from bidplane.runtime.installation import Installation

    where = Installation(place.folder / "data")
    token = where.owner_token(user="owner", now=SystemClock().now())
    with httpx2.Client(
        verify=ssl.create_default_context(cafile=where.ca_file), trust_env=False
    ) as http:
        return http.get(
            f"{where.address().url}/planes/host{path}", headers={"Authorization": f"Bearer {token}"}
        )


def test_nothing_a_can_read_names_b(two: Two, place: Place) -> None:
    """While it holds a lease, and while a pod of its own waits because of B."""
    waits = {
        "metadata": {"name": "waits", "annotations": {"bidplane.dev/max-price": "0.21"}},
        "spec": {
            "containers": [
                {"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "4"}}}
            ]
        },
    }
    pods = f"{two.a.url}/api/v1/namespaces/default/pods"
    with (
        bidplane.Client(kubeconfig=two.a_file) as client,
        client.lease(max_price=1, timeout=60),
        two.http(two.a.url, two.a.token) as http,
    ):
        assert http.post(pods, json=waits).status_code == 201
        deadline = time.monotonic() + 30
        while "bidplane.dev/pending" not in http.get(f"{pods}/waits").text:
            assert time.monotonic() < deadline
        read = dict(_everything(two))
        (bid, *_) = [
            host_bid["metadata"]["uid"]
            for host_bid in json.loads(_host(place, "/apis/bidplane.dev/v1alpha1/bids").text)[
                "items"
            ]
            if host_bid["metadata"]["annotations"]["bidplane.dev/plane-name"].startswith("waits")
        ]
        explained = http.get(f"{two.a.root}/exchange/v1/bids/{bid}/explain")
        read["explain"] = explained.text
        assert explained.status_code == 200, "its own"
        read |= asyncio.run(_of_mcp(place, two.a_file))
        http.delete(f"{pods}/waits")
    assert len(read) > 45
    for path, text in read.items():
        for word in (B_POD, B_OWNER, "bravos-team", two.b.agent):
            assert word not in text, (path, word)


async def _of_mcp(place: Place, kubeconfig: Path) -> dict[str, str]:
    async with stdio(place, kubeconfig) as client:
        calls = {}
        for tool, message in (
            ("prices", {}),
            ("quote", {"gpus": 4}),
            ("wallet", {}),
            ("leases", {}),
            ("why_pending", {"name": "waits"}),
        ):
            answer = await client.call_tool(tool, message)
            calls[f"mcp {tool}"] = str(answer.content)
        return calls


def _everything(two: Two) -> Iterator[tuple[str, str]]:
    """Every list of A's plane, and every answer of the exchange to A."""
    with two.http(two.a.url, two.a.token) as http:
        groups = _groups(http, two.a.url)
        for group in groups:
            for resource in http.get(two.a.url + group).json()["resources"]:
                if "list" in resource["verbs"] and "/" not in resource["name"]:
                    path = f"{group}/{resource['name']}"
                    answer = http.get(two.a.url + path)
                    assert answer.status_code == 200, path
                    yield path, answer.text
        for path in (
            "prices",
            "prices/h100/history",
            "leases",
            "rounds?after=0",
            f"wallets/{two.a.agent}",
            f"wallets/{two.a.agent}/statement",
        ):
            answer = http.get(f"{two.a.root}/exchange/v1/{path}")
            assert answer.status_code == 200, path
            yield path, answer.text
