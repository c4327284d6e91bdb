"""
The same kubectl, the same commands, on a plane and on a real cluster: what it prints is compared.

Ages, uids, revisions and generated names are blanked; everything else must be the same.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .conftest import Kubectl

if TYPE_CHECKING:
    from bidplane.testing.cluster import Cluster

KUBECONFIG = """\
apiVersion: v1
kind: Config
clusters: [{{name: c, cluster: {{server: "{url}", certificate-authority: "{ca}"}}}}]
users: [{{name: u, user: {{token: "{token}"}}}}]
contexts: [{{name: c, context: {{cluster: c, user: u, namespace: {namespace}}}}}]
current-context: c
"""
MAP = """
apiVersion: v1
kind: ConfigMap
metadata: {name: one, labels: {set: x, tier: web}, annotations: {note: "1"}}
data: {k: v, l: w}
"""
TWO = MAP.replace("name: one", "name: two").replace("tier: web", "tier: db").replace(", l: w", "")
DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {app: web}}
spec:
  replicas: 0
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: main, image: "web:1", ports: [{containerPort: 80}]}
"""
CRD = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: boxes.words.test}
spec:
  group: words.test
  scope: Namespaced
  names: {plural: boxes, kind: Box, shortNames: [bx]}
  versions:
  - name: v1
    served: true
    storage: true
    additionalPrinterColumns:
    - {name: Size, type: integer, jsonPath: .spec.size}
    - {name: Colour, type: string, jsonPath: .spec.colour, priority: 1}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            x-kubernetes-validations: [{rule: "self.size < 10", message: "too big"}]
            properties:
              size: {type: integer}
              colour: {type: string, default: red}
"""
BOX = """
apiVersion: words.test/v1
kind: Box
metadata: {name: b}
spec: {size: 3}
"""
KUSTOMIZATION = """
namePrefix: pre-
resources: [map.yaml]
"""
_BLANKED: tuple[tuple[str, str], ...] = (
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "UID"),
    (r"resourceVersion: \"\d+\"", "resourceVersion"),
    (r"\"resourceVersion\": \"\d+\"", "resourceVersion"),
    (r"Resource Version:\s+\d+", "Resource Version"),
    (r"[WIE]\d{4} \d\d:\d\d:\d\d\.\d+\s+\d+ ", "LOG "),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "TIME"),
    (r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d [+-]\d{4}", "TIME"),
    (r"\b\d+(s|ms|m\d*s?)\b", "AGE"),
    (r"[ \t]+", " "),
    (r"(?m)^[-+]{3} \S+ .*$", "FILE"),
    (r"diff -u -N \S+ \S+", "DIFF"),
    (r"eyJ[\w-]+\.[\w-]+\.[\w-]+", "TOKEN"),
)


class Side:
    """One of the two, with a namespace of the test's own and files to apply."""

    def __init__(self, kubectl: Kubectl, folder: Path, namespace: str) -> None:
        self.kubectl, self.folder, self.namespace = kubectl, folder, namespace
        for name, text in (
            ("map.yaml", MAP),
            ("maps.yaml", f"{MAP}---{TWO}"),
            ("changed.yaml", MAP.replace("k: v", "k: changed")),
            ("deployment.yaml", DEPLOYMENT),
            ("crd.yaml", CRD),
            ("box.yaml", BOX),
            ("bigbox.yaml", BOX.replace("3", "30")),
            ("wrong.yaml", MAP.replace("data:", "dat:")),
            ("kustomization.yaml", KUSTOMIZATION),
        ):
            (folder / name).write_text(text)
        (folder / "editor").write_text("#!/bin/sh\nsed -i 's/k: v/k: edited/' \"$1\"\n")
        (folder / "editor").chmod(0o755)

    def say(self, command: str) -> str:
        """What a command prints, with what differs by nature blanked; its exit code first."""
        environment = {**self.kubectl.environment, "KUBE_EDITOR": str(self.folder / "editor")}
        done = subprocess.run(
            [str(self.kubectl.binary), *command.split()],
            capture_output=True,
            text=True,
            timeout=60,
            env=environment,
            cwd=self.folder,
        )
        text = f"{done.returncode}\n{done.stdout}{done.stderr}".replace(self.namespace, "NS")
        for pattern, blank in _BLANKED:
            text = re.sub(pattern, blank, text)
        return text.strip()


@pytest.fixture
def sides(
    kubectl_binary: Path,
    served: Path,
    cluster: Cluster,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Iterator[list[Side]]:
    namespace = f"w-{abs(hash(request.node.name)) % 10**8}"
    found = []
    for name in ("ours", "real"):
        folder = tmp_path / name
        folder.mkdir()
        kubeconfig = folder / "kubeconfig"
        if name == "ours":
            kubeconfig.write_text(served.read_text())
        else:
            kubeconfig.write_text(
                KUBECONFIG.format(
                    url=cluster.url, ca=cluster.ca_file, token=cluster.token, namespace=namespace
                )
            )
        runner = Kubectl(kubectl_binary, kubeconfig, folder)
        runner("create", "namespace", namespace)
        runner("config", "set-context", "--current", f"--namespace={namespace}")
        found.append(Side(runner, folder, namespace))
        _until_named(runner, "default", "get", "serviceaccounts", "-o", "name")
    yield found
    for side in found:
        side.kubectl.run("delete", "namespace", namespace, "--wait=false", check=False)


def _until_named(kubectl: Kubectl, name: str, *command: str) -> None:
    end = time.monotonic() + 20
    while name not in kubectl(*command):
        assert time.monotonic() < end
        time.sleep(0.1)


STORIES: dict[str, list[str]] = {
    "apply": [
        "apply -f map.yaml",
        "apply -f map.yaml",
        "diff -f changed.yaml",
        "apply -f changed.yaml",
        "get configmap one -o yaml",
        "get configmap one -o jsonpath={.data}",
        "apply -f wrong.yaml",
        "apply -f changed.yaml --dry-run=server",
        "delete -f map.yaml",
        "get configmap one",
    ],
    "server-side": [
        "apply --server-side -f map.yaml",
        "apply --server-side --field-manager=other -f changed.yaml",
        "apply --server-side --field-manager=other --force-conflicts -f changed.yaml",
        "get configmap one -o yaml --show-managed-fields",
        "diff --server-side --field-manager=other -f map.yaml",
    ],
    "prune": [
        "apply --prune -l set=x -f maps.yaml",
        "apply --prune -l set=x -f map.yaml",
        "get configmaps -l set=x",
        "get configmaps -l tier!=web,set",
    ],
    "kustomize": ["apply -k .", "get configmap pre-one -o jsonpath={.data.k}", "delete -k ."],
    "edit and patch": [
        "create -f map.yaml",
        "create -f map.yaml",
        "edit configmap one",
        "get configmap one -o jsonpath={.data.k}",
        'patch configmap one -p {"data":{"x":"1"}}',
        'patch configmap one --type=merge -p {"data":{"x":null}}',
        'patch configmap one --type=json -p [{"op":"remove","path":"/data/l"}]',
        'patch configmap one --type=json -p [{"op":"remove","path":"/data/l"}]',
        "label configmap one tier=api --overwrite",
        "label configmap one tier=db",
        "annotate configmap one note-",
        "get configmap one -o jsonpath={.data}{.metadata.labels}{.metadata.annotations}",
        "replace -f changed.yaml",
        "get configmaps -o name",
    ],
    "lists": [
        "apply -f maps.yaml",
        "get configmaps -l set=x",
        "get configmaps -l set=x -o wide --show-labels",
        "get configmaps -l set=x --chunk-size=1 -o name",
        "get configmaps --field-selector metadata.name=one",
        "get configmaps --field-selector nope=one",
        "get configmaps -l a=(",
        "get configmaps,secrets -l set=x",
        "get nope",
        # Of the two the one with a single key: kubectl before 1.33 prints keys in any order.
        "describe configmap two",
    ],
    "create": [
        "create configmap c --from-literal=a=b",
        "create secret generic s --from-literal=a=b",
        "create serviceaccount robot",
        "create role r --verb=get --resource=pods",
        "create rolebinding rb --role=r --serviceaccount=default:robot",
        "get configmap,secret,role,rolebinding",
        "describe role r",
        "describe rolebinding rb",
        "describe secret s",
        "create job j --image=x -- true",
        "create quota q --hard=pods=2",
        "create token robot",
        "create token nope",
    ],
    "access": [
        "auth can-i create pods",
        "auth can-i create pods --as=bob",
        "auth can-i get pods --as=system:serviceaccount:NS:default",
        "get pods --as=bob",
        "create rolebinding v --clusterrole=view --user=bob",
        "auth can-i list pods --as=bob",
        "auth can-i list secrets --as=bob",
        "auth can-i --list --as=nobody",
        "auth whoami --as=bob --as-group=team",
    ],
    "deployments": [
        "apply -f deployment.yaml",
        "get deployment web --no-headers",
        "scale deployment web --replicas=0 --current-replicas=3",
        "set image deployment/web main=web:2",
        "get deployment web -o jsonpath={.spec.template.spec.containers[0].image}",
        "delete deployment web --cascade=foreground",
        "get deployment web",
    ],
    "explain": [
        "explain pod.spec.containers.ports.protocol -o plaintext-openapiv2",
        "api-versions",
        "explain nope",
    ],
}
# Where the difference is known, and why; each is a debt.
DIFFERENT = {
    "explain pod.spec.containers.ports.protocol -o plaintext-openapiv2": "no OpenAPI v2",
    "api-versions": "we serve v1beta1 and v1beta2 of resource.k8s.io, and our own group",
    "auth can-i --list --as=nobody": "the order of the rules",
}


@pytest.mark.kube
@pytest.mark.timeout(300)
@pytest.mark.parametrize("story", STORIES)
def test_kubectl_says_the_same(sides: list[Side], story: str) -> None:
    ours, real = sides
    for command in STORIES[story]:
        spoken = command.replace("NS", ours.namespace)
        mine, theirs = ours.say(spoken), real.say(spoken)
        if command not in DIFFERENT:
            assert mine == theirs, f"kubectl {command}"


@pytest.mark.kube
@pytest.mark.timeout(300)
def test_definitions_say_the_same(sides: list[Side]) -> None:
    ours, real = sides
    try:
        for side in sides:
            side.kubectl("apply", "-f", str(side.folder / "crd.yaml"))
            side.kubectl(
                "wait", "crd/boxes.words.test", "--for=condition=Established", "--timeout=20s"
            )
            _until_named(side.kubectl, "boxes", "api-resources")
        for command in (
            "apply -f box.yaml",
            "apply -f box.yaml",
            "get bx",
            "get boxes -o wide",
            "get box b -o jsonpath={.spec}",
            "apply -f bigbox.yaml",
            'patch box b --type=merge -p {"spec":{"size":"x"}}',
            "apply --server-side --field-manager=me -f box.yaml",
            "explain box.spec",
            "explain box --recursive",
            "api-resources --api-group=words.test",
            "describe box b",
            "delete box b",
        ):
            assert ours.say(command) == real.say(command), f"kubectl {command}"
    finally:
        for side in sides:
            side.kubectl.run("delete", "crd", "boxes.words.test", "--wait=false", check=False)
