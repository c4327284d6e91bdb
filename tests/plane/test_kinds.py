"""
Every kind as a plane answers it, beside a real server: what is added to a small object, and the
row that `kubectl get` shows of it.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from bidplane.wire import data

from .conftest import Embedded, Endpoint

SAMPLES = list(yaml.safe_load_all(Path(__file__).with_name("kinds.yaml").read_text()))
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
# A controller of the real cluster writes their status meanwhile; stories tell of theirs.
_WATCHED = {
    *("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job", "CronJob"),
    *("ReplicationController", "PodDisruptionBudget", "ResourceQuota", "FlowSchema"),
    "IPAddress",  # whose row upstream has one cell more than there are columns
    *("APIService", "Namespace", "HorizontalPodAutoscaler", "PersistentVolumeClaim"),
}


def path(sample: dict[str, Any]) -> tuple[str, bool]:
    group, _, version = sample["apiVersion"].rpartition("/")
    wanted = (group, version, sample["kind"])
    (row,) = [
        row
        for row in data.resources()["resources"]
        if (row["group"], row["version"], row["kind"]) == wanted
    ]
    base = f"/apis/{group}/{version}" if group else f"/api/{version}"
    scope = "/namespaces/{ns}" if row["namespaced"] else ""
    return f"{base}{scope}/{row['plural']}", row["namespaced"]


def blanked(said: Any, namespace: str) -> str:
    if isinstance(said, dict):
        said = {**said, "metadata": {**said["metadata"], "managedFields": []}}
    text = json.dumps(said, indent=1, sort_keys=True).replace(namespace, "NS")
    for pattern, blank in (
        (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "UID"),
        (r'"resourceVersion": "\d+"', "REVISION"),
        (r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME"),
        (r"kube-api-access-\w+", "kube-api-access-X"),
        (r"10\.96\.\d+\.\d+", "ADDRESS"),
        (r"\b3[0-2]\d{3}\b", "NODE-PORT"),
        (r'"\d+m?s"', "AGE"),
    ):
        text = re.sub(pattern, blank, text)
    return text


def _is_served(side: Endpoint, path: str) -> bool:
    return side.call("GET", path).code == 200


@pytest.fixture(scope="module")
def both(embedded: Embedded, cluster: Any) -> Iterator[list[Endpoint]]:
    real = Endpoint(cluster.url, cluster.token, cluster.ca_file)
    sides = [embedded.make("kinds"), real]
    namespace = f"k-{secrets.token_hex(4)}"
    account = "/api/v1/namespaces/{ns}/serviceaccounts/default"
    for side in sides:
        side.namespace = namespace
        side.ok("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        side.eventually(partial(_is_served, side, account))
    yield sides
    for side in sides:
        side.call("DELETE", f"/api/v1/namespaces/{namespace}")


@pytest.mark.kube
@pytest.mark.parametrize(
    "sample", SAMPLES, ids=lambda sample: f"{sample['kind']}-{sample['metadata']['name']}"
)
def test_as_on_a_real_server(both: list[Endpoint], sample: dict[str, Any]) -> None:
    at, _ = path(sample)
    name = sample["metadata"]["name"]
    try:
        mine, real = (blanked(side.call("POST", at, sample).body, side.namespace) for side in both)
        assert mine == real
        if sample["kind"] not in _WATCHED and '"code": 4' not in real:
            mine, real = (_row(side, f"{at}/{name}") for side in both)
            assert mine == real
    finally:
        for side in both:
            side.call("DELETE", f"{at}/{name}")


def _row(side: Endpoint, at: str) -> str:
    table = side.ok("GET", at, accept=TABLE)
    columns = [
        [column[key] for key in ("name", "type", "format", "priority")]
        for column in table["columnDefinitions"]
    ]
    return blanked([columns, table["rows"][0]["cells"]], side.namespace)


def test_every_kind_that_can_be_listed_has_cells(plane: Endpoint) -> None:
    """A table of any kind has as many columns as it was recorded with."""
    wanted: dict[str, list[str]] = {}
    for row in data.resources()["resources"]:
        if row["default"] and "list" in row["verbs"]:
            base = f"/apis/{row['group']}" if row["group"] else "/api"
            scope = "/namespaces/default" if row["namespaced"] else ""
            wanted[f"{base}/{row['version']}{scope}/{row['plural']}"] = [
                column["name"] for column in row["columns"]
            ]
    lacking = []
    for at, columns in wanted.items():
        table = plane.ok("GET", at, accept=TABLE)
        if [column["name"] for column in table["columnDefinitions"]] != columns:
            lacking.append(at)
    assert lacking == [
        "/api/v1/componentstatuses",
        "/apis/certificates.k8s.io/v1/namespaces/default/podcertificaterequests",
        "/apis/storagemigration.k8s.io/v1/storageversionmigrations",
    ]
