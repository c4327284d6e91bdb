"""`bidplane doctor` on real control planes, each broken in one way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bidplane.testing.cluster import Cluster
from bidplane.testing.rig import Binaries

Json = dict[str, Any]
DRIVER = "gpu.example.com"


def gpu(**attributes: Json) -> Json:
    link = {"resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"}}
    return {
        "name": "gpu-0",
        "attributes": {
            "uuid": {"string": "GPU-0"},
            "type": {"string": "gpu"},
            **link,
            **attributes,
        },
        "capacity": {"memory": {"value": "80Gi"}},
        "allowMultipleAllocations": True,
    }


def resource_slice(device: Json) -> Json:
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "n1"},
        "spec": {"driver": DRIVER, "nodeName": "n1", "pool": pool, "devices": [device]},
    }


def doctor(kubeconfig: Path, *arguments: str) -> tuple[int, list[Json]]:
    """Run the command; return its exit code and the findings that are not in order."""
    command = [
        sys.executable,
        "-m",
        "bidplane",
        "doctor",
        "--kubeconfig",
        str(kubeconfig),
        "--json",
    ]
    ended = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60)
    assert ended.stdout, ended.stderr
    findings = json.loads(ended.stdout)["findings"]
    return ended.returncode, [finding for finding in findings if finding["level"] != "ok"]


NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "n1"},
    "status": {"allocatable": {"nvidia.com/gpu": "1"}, "capacity": {"nvidia.com/gpu": "1"}},
}
CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "gpu"},
    "spec": {},
}
VOLCANOS = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "theirs", "namespace": "default"},
    "spec": {
        "nodeName": "n1",
        "schedulerName": "volcano",
        "containers": [{"name": "c", "image": "x"}],
    },
}
WEBHOOK = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "ValidatingWebhookConfiguration",
    "metadata": {"name": "signer"},
    "webhooks": [
        {
            "name": "signer.example.com",
            "clientConfig": {"url": "https://127.0.0.1:1/"},
            "rules": [
                {
                    "apiGroups": [""],
                    "apiVersions": ["v1"],
                    "operations": ["CREATE"],
                    "resources": ["pods"],
                }
            ],
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "timeoutSeconds": 1,
        }
    ],
}
DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "things.bidplane.dev"},
    "spec": {
        "group": "bidplane.dev",
        "names": {"plural": "things", "singular": "thing", "kind": "Thing"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object"}},
            }
        ],
    },
}


@pytest.fixture(scope="module")
def sound(kube_binaries: Binaries) -> Iterator[Cluster]:
    """A control plane with one driver that publishes everything."""
    with Cluster(kube_binaries, controllers=False) as running:
        apply(running, resource_slice(gpu()))
        apply(running, CLASS)
        account = {"kind": "ServiceAccount", "apiVersion": "v1", "metadata": {"name": "default"}}
        apply(running, account)
        yield running


def apply(cluster: Cluster, obj: Json) -> None:
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", input=json.dumps(obj))


def remove(cluster: Cluster, obj: Json) -> None:
    arguments = ("--wait=false", "--grace-period=0", "--force")
    cluster.kubectl("delete", *arguments, "-f", "-", input=json.dumps(obj))


@pytest.mark.kube
def test_a_sound_cluster(sound: Cluster) -> None:
    code, findings = doctor(sound.kubeconfig)
    assert [finding["check"] for finding in findings] == ["metrics"]
    assert code == 0


@pytest.mark.kube
@pytest.mark.parametrize(
    ("obj", "check", "level", "words"),
    [
        (resource_slice(gpu(uuid={"string": ""})), "drivers", "problem", "lack a uuid"),
        (
            resource_slice(gpu(**{"resource.kubernetes.io/pcieRoot": {"string": ""}})),
            "drivers",
            "note",
            "nothing of their links",
        ),
        (NODE, "nodes", "problem", "given out twice"),
        (VOLCANOS, "schedulers", "note", "volcano"),
        (WEBHOOK, "admission", "problem", "failed calling webhook"),
        (DEFINITION, "bidplanes", "note", "1 definitions, 0 agents"),
    ],
    ids=["no uuid", "no links", "plugin and driver", "a scheduler", "a dead webhook", "a Bidplane"],
)
def test_a_cluster_that_is_broken_in_one_way(
    sound: Cluster, obj: Json, check: str, level: str, words: str
) -> None:
    apply(sound, obj)
    if obj is NODE:
        sound.kubectl(
            "patch", "node", "n1", "--subresource=status", "--type=merge",
            "-p", json.dumps({"status": NODE["status"]}),
        )  # fmt: skip
    try:
        code, findings = doctor(sound.kubeconfig)
    finally:
        if obj["kind"] == "ResourceSlice":
            apply(sound, resource_slice(gpu()))
        else:
            remove(sound, obj)
    assert [finding["check"] for finding in findings if finding["check"] != "metrics"]
    finding = next(finding for finding in findings if finding["check"] == check)
    assert finding["level"] == level
    assert words in f"{finding['fact']} {finding['cost']}"
    assert code == (level == "problem")


@pytest.mark.kube
def test_an_account_without_rights(sound: Cluster) -> None:
    code, findings = doctor(sound.kubeconfig_for("stranger", "nobody"))
    assert code == 1
    rights = [finding["fact"] for finding in findings if finding["check"] == "rights"]
    assert any("may not get, list, watch, create, patch, delete pods" in line for line in rights)
    assert any("update, patch resourceclaims/binding" in line for line in rights)
    assert any("resourceslices.resource.k8s.io cannot be listed" in line for line in rights)


@pytest.mark.kube
@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.34", "1.36"])
def test_an_older_cluster_cannot_reserve(kube_binaries: Binaries, version: str) -> None:
    flags = (f"--emulated-version={version}",)
    with Cluster(kube_binaries, controllers=False, apiserver_flags=flags) as older:
        apply(older, resource_slice(gpu()))
        _, findings = doctor(older.kubeconfig)
    by_check = {finding["check"]: finding for finding in findings}
    assert "a stranger's pod may take one" in by_check["reservation"]["cost"]


def test_a_kubeconfig_that_is_not_there(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bidplane", "doctor"]
    environment = {**os.environ, "KUBECONFIG": str(tmp_path / "none")}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ended.returncode == 2
    assert "--kubeconfig FILE" in ended.stderr


@pytest.mark.kube
def test_a_run_stores_nothing(sound: Cluster) -> None:
    doctor(sound.kubeconfig)
    for path in ("/api/v1/pods", "/apis/resource.k8s.io/v1/resourceclaims"):
        _, body = sound.get(path)
        assert json.loads(body)["items"] == []
