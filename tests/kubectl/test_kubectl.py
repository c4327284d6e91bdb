"""Stock kubectl against a plane: the commands of the first path, and what they print."""

from __future__ import annotations

import json
import subprocess
import time

import pytest

from .conftest import Kubectl

POD = """
apiVersion: v1
kind: Pod
metadata:
  name: train
  annotations: {bidplane.dev/max-price: "2.50"}
spec:
  containers:
  - name: main
    image: trainer:1
    resources: {limits: {nvidia.com/gpu: "2"}}
"""
CRD = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: boxes.kubectl.test}
spec:
  group: kubectl.test
  scope: Namespaced
  names: {plural: boxes, kind: Box, shortNames: [bx]}
  versions:
  - name: v1
    served: true
    storage: true
    additionalPrinterColumns:
    - {name: Size, type: integer, jsonPath: .spec.size}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              size: {type: integer}
              tags: {type: array, items: {type: string}}
"""
BOX = """
apiVersion: kubectl.test/v1
kind: Box
metadata: {name: b}
spec: {size: 3, tags: [a, b]}
"""

BOUND = """
apiVersion: v1
kind: ConfigMap
metadata: {name: one, labels: {set: x}}
data:
  k: v
"""
BOUND_TOO = BOUND.replace("one", "two")


def test_apply_get_describe_delete(kubectl: Kubectl) -> None:
    assert kubectl("apply", "-f", "-", input=POD) == "pod/train created\n"
    assert kubectl("apply", "-f", "-", input=POD) == "pod/train unchanged\n"
    line = kubectl("get", "pod", "train", "--no-headers").split()
    assert line[:4] == ["train", "0/1", "Pending", "0"]
    wide = kubectl("get", "pods", "-o", "wide").splitlines()[0].split()
    assert wide[:6] == ["NAME", "READY", "STATUS", "RESTARTS", "AGE", "IP"]
    changed = POD.replace("trainer:1", "trainer:2").replace("2.50", "3.00")
    assert kubectl("apply", "-f", "-", input=changed) == "pod/train configured\n"
    found = json.loads(kubectl("get", "pod", "train", "-o", "json"))
    assert found["spec"]["containers"][0]["image"] == "trainer:2"
    assert found["metadata"]["annotations"]["bidplane.dev/max-price"] == "3.00"
    described = kubectl("describe", "pod", "train")
    assert "nvidia.com/gpu:  2" in described
    assert "Status:           Pending" in described
    assert 'pod "train" deleted' in kubectl("delete", "pod", "train")
    gone = kubectl.run("get", "pod", "train", check=False)
    assert gone.returncode == 1
    assert 'pods "train" not found' in gone.stderr


def test_apply_says_what_is_wrong(kubectl: Kubectl) -> None:
    unknown = kubectl.run("apply", "-f", "-", input=POD.replace("image:", "imag:"), check=False)
    assert unknown.returncode == 1
    assert 'unknown field "spec.containers[0].imag"' in unknown.stderr
    bad = kubectl.run("apply", "-f", "-", input=POD.replace("train\n", "Train\n"), check=False)
    assert "a lowercase RFC 1123 subdomain must consist of" in bad.stderr


def test_created_with_protobuf_bodies(kubectl: Kubectl) -> None:
    kubectl("create", "configmap", "c", "--from-literal=k=v")
    kubectl("create", "secret", "generic", "s", "--from-literal=k=v")
    kubectl("create", "deployment", "d", "--image=web:1", "--replicas=2")
    assert kubectl("get", "configmap", "c", "-o", "jsonpath={.data.k}") == "v"
    assert kubectl("get", "secret", "s", "-o", "jsonpath={.data.k}") == "dg=="
    line = kubectl("get", "deployment", "d", "--no-headers").split()
    assert line[:2] + line[3:4] == ["d", "0/2", "0"]
    assert kubectl("get", "configmap", "c", "--no-headers").split()[:2] == ["c", "1"]
    assert kubectl("get", "secret", "s", "--no-headers").split()[:3] == ["s", "Opaque", "1"]
    assert kubectl("auth", "can-i", "create", "pods").strip() == "yes"
    assert "agent" in kubectl("auth", "whoami")


def test_wait_and_watch(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", input=POD)
    watching = subprocess.Popen(
        [str(kubectl.binary), "get", "pods", "-w", "--no-headers"],
        stdout=subprocess.PIPE,
        text=True,
        env=kubectl.environment,
    )
    try:
        assert watching.stdout is not None
        assert watching.stdout.readline().split()[:3] == ["train", "0/1", "Pending"]
        waiting = subprocess.Popen(
            [
                str(kubectl.binary), "wait", "pod/train", "--timeout=30s",
                "--for=jsonpath={.status.phase}=Running",
            ],
            stdout=subprocess.PIPE,
            text=True,
            env=kubectl.environment,
        )  # fmt: skip
        time.sleep(0.2)
        patch = '{"status":{"phase":"Running"}}'
        kubectl("patch", "pod", "train", "--subresource=status", "--type=merge", "-p", patch)
        assert waiting.communicate(timeout=30)[0] == "pod/train condition met\n"
        assert watching.stdout.readline().split()[:3] == ["train", "0/1", "Running"]
        kubectl("delete", "pod", "train", "--wait=true")
        gone = kubectl.run("wait", "pod/train", "--for=delete", "--timeout=5s", check=False)
        assert gone.returncode == 0 or "NotFound" in gone.stderr
    finally:
        watching.terminate()
        watching.wait()


def test_a_definition_and_its_objects(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", input=CRD)
    kubectl("wait", "crd/boxes.kubectl.test", "--for=condition=Established", "--timeout=10s")
    try:
        assert kubectl("apply", "-f", "-", input=BOX) == "box.kubectl.test/b created\n"
        assert kubectl("apply", "-f", "-", input=BOX) == "box.kubectl.test/b unchanged\n"
        smaller = BOX.replace("[a, b]", "[a]")
        assert kubectl("apply", "-f", "-", input=smaller) == "box.kubectl.test/b configured\n"
        assert kubectl("get", "bx").splitlines()[1].split() == ["b", "3"]
        tags = kubectl("get", "bx", "b", "-o", "jsonpath={.spec.tags}")
        assert json.loads(tags) == ["a"]
        wrong = kubectl.run("apply", "-f", "-", input=BOX.replace("3", "x"), check=False)
        assert "must be of type integer" in wrong.stderr
        assert "size" in kubectl("explain", "box.spec")
    finally:
        kubectl("delete", "crd", "boxes.kubectl.test")
    assert "boxes" not in kubectl("api-resources")


def test_our_own_kinds(kubectl: Kubectl) -> None:
    names = kubectl("api-resources", "--api-group=bidplane.dev", "-o", "name").split()
    assert "bids.bidplane.dev" in names
    assert kubectl("get", "gpuleases") == ""


@pytest.mark.parametrize("kind", ["nodes", "events", "namespaces", "crds", "all"])
def test_get_of_what_is_usual(kubectl: Kubectl, kind: str) -> None:
    assert kubectl.run("get", kind).returncode == 0


def test_labels_annotations_patches(kubectl: Kubectl) -> None:
    kubectl("create", "configmap", "c", "--from-literal=k=v")
    kubectl("label", "configmap", "c", "tier=web")
    kubectl("annotate", "configmap", "c", "note=x")
    assert kubectl("get", "configmaps", "-l", "tier=web", "-o", "name") == "configmap/c\n"
    kubectl("patch", "configmap", "c", "--type=json",
            "-p", '[{"op":"replace","path":"/data/k","value":"w"}]')  # fmt: skip
    kubectl("patch", "configmap", "c", "-p", '{"data":{"l":"x"}}')
    data = json.loads(kubectl("get", "configmap", "c", "-o", "jsonpath={.data}"))
    assert data == {"k": "w", "l": "x"}
    replaced = json.loads(kubectl("get", "configmap", "c", "-o", "json"))
    replaced["data"] = {"only": "this"}
    kubectl("replace", "-f", "-", input=json.dumps(replaced))
    stale = kubectl.run("replace", "-f", "-", input=json.dumps(replaced), check=False)
    assert "the object has been modified" in stale.stderr


def test_server_side_apply(kubectl: Kubectl) -> None:
    done = kubectl("apply", "--server-side", "-f", "-", input=POD)
    assert done == "pod/train serverside-applied\n"
    other = POD.replace("2.50", "3.00")
    refused = kubectl.run(
        "apply", "--server-side", "--field-manager=me", "-f", "-", input=other, check=False
    )
    assert refused.returncode == 1
    assert 'conflict with "kubectl": .metadata.annotations.bidplane.dev/max-price' in refused.stderr
    forced = kubectl(
        "apply", "--server-side", "--field-manager=me", "--force-conflicts", "-f", "-", input=other
    )
    assert forced == "pod/train serverside-applied\n"
    shown = kubectl("get", "pod", "train", "-o", "yaml", "--show-managed-fields")
    assert "manager: me" in shown


def test_from_client_side_to_server_side(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", input=POD)
    kubectl("apply", "--server-side", "-f", "-", input=POD.replace("2.50", "3.00"))
    found = json.loads(kubectl("get", "pod", "train", "-o", "json", "--show-managed-fields"))
    entries = found["metadata"]["managedFields"]
    # kubectl keeps its annotation under a second name, and gives up the one it updated with.
    assert {(entry["manager"], entry["operation"]) for entry in entries} == {
        ("kubectl", "Apply"),
        ("kubectl-last-applied", "Apply"),
    }
    assert found["metadata"]["annotations"]["bidplane.dev/max-price"] == "3.00"


def test_diff(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", input=BOUND)
    assert kubectl.run("diff", "-f", "-", input=BOUND).returncode == 0
    changed = kubectl.run("diff", "-f", "-", input=BOUND.replace("k: v", "k: w"), check=False)
    assert changed.returncode == 1
    assert "-  k: v" in changed.stdout
    assert "+  k: w" in changed.stdout
    server = kubectl.run(
        "diff", "--server-side", "--force-conflicts", "-f", "-", input=BOUND, check=False
    )
    assert server.returncode in (0, 1), server.stderr
    assert kubectl("get", "configmap", "one", "-o", "jsonpath={.data.k}") == "v"


def test_prune(kubectl: Kubectl) -> None:
    kubectl("apply", "--prune", "-l", "set=x", "-f", "-", input=f"{BOUND}---{BOUND_TOO}")
    pruned = kubectl("apply", "--prune", "-l", "set=x", "-f", "-", input=BOUND)
    assert "configmap/two pruned" in pruned
    names = kubectl("get", "configmaps", "-l", "set=x", "-o", "name")
    assert names == "configmap/one\n"


def test_logs_of_a_pod_nobody_runs(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", input=POD)
    done = kubectl.run("logs", "train")
    assert (done.stdout, done.stderr) == ("", "")  # it has not started: nothing was said yet
    placed = POD.replace("spec:", "spec:\n  nodeName: somewhere").replace("train", "placed")
    kubectl("apply", "-f", "-", input=placed)
    done = kubectl.run("logs", "placed", check=False)
    assert "no node serves the logs" in done.stderr
    kubectl("delete", "pod", "placed", "--grace-period=0", "--force")
