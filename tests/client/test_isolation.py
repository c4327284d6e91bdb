"""
Agent A's credential against everything there is: nothing but its own opens, and nothing it
can read names B.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

import bidplane
from bidplane.client import config as configs

from .conftest import Place

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
    made = Two(place)
    pods = f"{made.b.url}/api/v1/namespaces/default/pods"
    with made.http(made.b.url, made.b.token) as http:
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
        yield made
        for name in (B_POD, f"{B_POD}-waits"):
            http.delete(f"{pods}/{name}")


def test_no_route_of_the_server_opens_anothers(two: Two) -> None:
    other, root = two.b.agent, two.a.root
    planes = [
        f"/planes/{plane}{path}"
        for plane in (other, "host")
        for path in (
            "/api",
            "/apis",
            "/version",
            "/openapi/v3",
            "/api/v1/namespaces",
            "/api/v1/pods",
            f"/api/v1/namespaces/default/pods/{B_POD}",
            f"/api/v1/namespaces/default/pods/{B_POD}/log",
            f"/api/v1/namespaces/default/pods/{B_POD}/exec?command=sh&stdout=true",
            f"/api/v1/namespaces/default/pods/{B_POD}/portforward",
            "/api/v1/secrets",
            "/api/v1/nodes",
            "/apis/bidplane.dev/v1alpha1/bids",
            "/apis/bidplane.dev/v1alpha1/gpuleases",
            "/apis/bidplane.dev/v1alpha1/agents",
            "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        )
    ]
    exchange = [
        f"/exchange/v1/wallets/{other}",
        f"/exchange/v1/wallets/{other}/statement",
        "/exchange/v1/rounds/1",
    ]
    owners = ["/bidplane/v1/planes", f"/bidplane/v1/planes/{other}"]
    with two.http(root, two.a.token) as http:
        for path in (*planes, *exchange, *owners):
            for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
                answer = http.request(method, path, json={})
                assert answer.status_code in (401, 403, 404, 405), (method, path, answer.text)
        for path, body in (
            (f"/exchange/v1/wallets/{other}/fund", {"amount": "1", "key": "k"}),
            (f"/exchange/v1/wallets/{two.a.agent}/fund", {"amount": "1", "key": "k"}),
            (
                f"/exchange/v1/wallets/{other}/transfer",
                {"to": two.a.agent, "amount": "1", "key": "k"},
            ),
            (f"/bidplane/v1/agents/{other}/kubeconfig", {}),
            (f"/bidplane/v1/agents/{two.a.agent}/kubeconfig", {}),
            ("/bidplane/v1/agents/host/kubeconfig", {}),
        ):
            answer = http.post(path, json=body)
            assert answer.status_code in (403, 404), (path, answer.text)


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


def test_the_exchange_and_the_nodes_own_ports_ask_too(two: Two, place: Place) -> None:
    with two.http(two.exchange, two.a.token) as http:
        assert http.get(f"/exchange/v1/wallets/{two.b.agent}").status_code == 404
        assert http.get("/exchange/v1/rounds/1").status_code == 403
    with bidplane.Client(kubeconfig=two.b_file) as client:
        (lease,) = client.leases()
    nodes = json.loads(_host(place, "/api/v1/nodes").text)["items"]
    (node,) = [n for n in nodes if n["metadata"]["name"] == lease.node]
    port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
    pods = json.loads(_host(place, "/api/v1/pods").text)["items"]
    (pod,) = [p for p in pods if B_POD in p["metadata"]["name"] and p["spec"].get("nodeName")]
    where = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}/main"
    with two.http(f"https://127.0.0.1:{port}", two.a.token) as http:
        for path in (f"/containerLogs/{where}", f"/exec/{where}?command=sh", "/pods", "/metrics"):
            assert http.get(path).status_code in (401, 403, 404, 405), path


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


def test_nothing_a_can_read_names_b(two: Two) -> None:
    with bidplane.Client(kubeconfig=two.a_file) as client, client.lease(max_price=1, timeout=60):
        read = dict(_everything(two))
    assert len(read) > 40
    for path, text in read.items():
        for word in (B_POD, B_OWNER, "bravos-team", two.b.agent):
            assert word not in text, (path, word)


def _everything(two: Two) -> Iterator[tuple[str, str]]:
    """Every list of A's plane, and every answer of the exchange to A."""
    with two.http(two.a.url, two.a.token) as http:
        groups = ["/api/v1"] + [
            f"/apis/{version['groupVersion']}"
            for group in http.get(f"{two.a.url}/apis").json()["groups"]
            for version in group["versions"]
        ]
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
