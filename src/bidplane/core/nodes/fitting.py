"""
Fitting pods to nodes: a pod's requests, node labels and tolerations against a node and the pods on
it. As kube-scheduler decides it, and in its messages where it has some.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

from bidplane.api import labels
from bidplane.api.kinds import Object
from bidplane.core.devices.claims.model import matches_terms
from bidplane.wire.quantity import canonical, of_bytes, parse

Amounts = Mapping[str, Fraction]

# The resources of a node beside GPUs; a pod that requests any other is refused.
SHARED = ("cpu", "memory", "ephemeral-storage")
HOSTNAME = "kubernetes.io/hostname"
_BLOCKING = ("NoSchedule", "NoExecute")
_FINISHED = ("Succeeded", "Failed")


def requests_of(pod: Object) -> dict[str, Fraction]:
    """Return the resources that a pod requests at once, without GPUs and with 1 of `pods`."""
    spec = pod["spec"]
    running: dict[str, Fraction] = {}
    peak: dict[str, Fraction] = {}
    for container in spec.get("initContainers") or ():
        amounts = _container_requests(container)
        _raise(peak, _sum(running, amounts))
        if (
            container.get("restartPolicy") == "Always"
        ):  # a sidecar runs on beside the later containers
            running = _sum(running, amounts)
    for container in spec.get("containers") or ():
        running = _sum(running, _container_requests(container))
    _raise(peak, running)
    overhead = {name: parse(value) for name, value in (spec.get("overhead") or {}).items()}
    return {**_sum(peak, overhead), "pods": Fraction(1)}


def _container_requests(container: Object) -> dict[str, Fraction]:
    """Return a container's requests, or its limits where it has no request."""
    resources = container.get("resources") or {}
    amounts = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: parse(value) for name, value in amounts.items() if not is_gpu(name)}


def written_amount(name: str, amount: Fraction) -> str:
    """Return an amount as a quantity: CPU in thousandths, all else in whole numbers."""
    if name == "cpu":
        return canonical(f"{math.ceil(amount * 1000)}m")
    return of_bytes(math.ceil(amount))


def is_gpu(resource: str) -> bool:
    """Return whether a resource is GPUs or parts of GPUs."""
    return resource in (labels.GPU_RESOURCE, labels.PART_RESOURCE) or resource.startswith(
        labels.MIG_PREFIX
    )


def _sum(first: Amounts, second: Amounts) -> dict[str, Fraction]:
    names = {**first, **second}
    return {name: first.get(name, Fraction(0)) + second.get(name, Fraction(0)) for name in names}


def _raise(most: dict[str, Fraction], amounts: Amounts) -> None:
    """Raise each amount in `most` to at least that in `amounts`."""
    for name, amount in amounts.items():
        most[name] = max(most.get(name, Fraction(0)), amount)


def unsupported(pod: Object) -> str:
    """Return the first requirement of a pod that no node here can meet, with its field; else ""."""
    for name in requests_of(pod):
        if name not in (*SHARED, "pods"):
            return (
                f"spec: no node here has the resource {name!r}; nodes have {', '.join(SHARED)} and"
                " GPUs: remove it"
            )
    affinity = pod["spec"].get("affinity") or {}
    for kind in ("podAffinity", "podAntiAffinity"):
        if (affinity.get(kind) or {}).get("requiredDuringSchedulingIgnoredDuringExecution"):
            return (
                f"spec.affinity.{kind}.requiredDuringSchedulingIgnoredDuringExecution is not"
                " supported here: make it preferred, or remove it"
            )
    for at, spread in enumerate(pod["spec"].get("topologySpreadConstraints") or ()):
        if spread.get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule":
            return (
                f"spec.topologySpreadConstraints[{at}] is not supported here: set whenUnsatisfiable"
                " to ScheduleAnyway, or remove it"
            )
    return ""


def required_terms(pod: Object) -> list[dict[str, Any]]:
    """Return the node selector terms of which a node must match one; [] if any node will do."""
    spec = pod["spec"]
    selector_terms = [
        {"key": key, "operator": "In", "values": [value]}
        for key, value in sorted((spec.get("nodeSelector") or {}).items())
    ]
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = required.get("nodeSelectorTerms") or ()
    if not terms:
        return [{"matchExpressions": selector_terms}] if selector_terms else []
    return [
        {**term, "matchExpressions": [*selector_terms, *(term.get("matchExpressions") or ())]}
        for term in terms
    ]


class Placing:
    """Nodes with their unused resources. A pod that is placed takes its requests at once."""

    def __init__(self, nodes: Iterable[Object], pods: Iterable[Object]) -> None:
        self._nodes = {node["metadata"]["name"]: node for node in nodes}
        self._left = {name: _allocatable(node) for name, node in self._nodes.items()}
        for pod in pods:
            name = pod["spec"].get("nodeName")
            if name in self._left and (pod.get("status") or {}).get("phase") not in _FINISHED:
                self.take(pod, name)

    def take(self, pod: Object, node: str) -> None:
        """Subtract a pod's requests from a node's unused resources."""
        unused = self._left[node]
        for name, amount in requests_of(pod).items():
            unused[name] = unused.get(name, Fraction(0)) - amount

    def why_not(self, pod: Object, node: str) -> str:
        """Return why a pod cannot run on a node, as kube-scheduler says it; "" if it can."""
        found_node = self._nodes.get(node)
        if found_node is None:
            return "node not found"
        if not _matches(pod, found_node):
            return "node(s) didn't match Pod's node affinity/selector"
        for taint in found_node["spec"].get("taints") or ():
            if taint["effect"] in _BLOCKING and not tolerates(pod, taint):
                return f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"
        unused = self._left[node]
        for name, amount in sorted(requests_of(pod).items()):
            if amount and unused.get(name, Fraction(0)) < amount:
                return "Too many pods" if name == "pods" else f"Insufficient {name}"
        return ""


def _allocatable(node: Object) -> dict[str, Fraction]:
    """Return a node's allocatable resources."""
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    return {name: parse(value) for name, value in allocatable.items()}


def _matches(pod: Object, node: Object) -> bool:
    """Return whether a node, or the machine behind it, matches a pod's required terms."""
    terms = required_terms(pod)
    if not terms:
        return True
    metadata = node["metadata"]
    node_labels = metadata.get("labels") or {}
    # A lease's node is named after the lease; a pod may also select the machine behind it by name.
    machine = str(node["spec"].get("providerID") or "").removeprefix("bidplane://").partition("/")
    candidates = [(metadata["name"], node_labels)]
    if machine[0]:
        candidates.append((machine[0], {**node_labels, HOSTNAME: machine[0]}))
    return any(matches_terms(terms, name, host_labels) for name, host_labels in candidates)


def tolerates(pod: Object, taint: Object) -> bool:
    """Return whether a pod tolerates a taint."""
    for toleration in pod["spec"].get("tolerations") or ():
        key, operator = toleration.get("key") or "", toleration.get("operator") or "Equal"
        if toleration.get("effect") not in (None, "", taint["effect"]):
            continue
        if not key and operator == "Exists":
            return True
        if key == taint["key"] and (
            operator == "Exists" or (toleration.get("value") or "") == (taint.get("value") or "")
        ):
            return True
    return False
