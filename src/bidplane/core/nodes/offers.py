"""
CPU and memory that the owner of a host's node offers to pods without GPUs, of any agent.

In an agent's plane each such node is a Node of its own, with the part of the offer that the pods of
others do not use. Pods there cost nothing, and nothing but the resources is promised.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from bidplane.api import labels
from bidplane.api.kinds import Draft, Object
from bidplane.core.nodes.fitting import requests_of
from bidplane.wire.quantity import canonical, of_bytes, parse

PREFIX = "offered-"  # of the Node in a plane, before the host's node's name
_PODS = 110
_ANNOTATIONS = {"cpu": labels.OFFERS_CPU, "memory": labels.OFFERS_MEMORY}
_FINISHED = ("Succeeded", "Failed")


def offer_of(host_node: Object) -> dict[str, Fraction]:
    """Return the resources that a host's node offers; {} if none, or if they cannot be read."""
    notes = host_node["metadata"].get("annotations") or {}
    try:
        offer = {name: parse(notes[key]) for name, key in _ANNOTATIONS.items() if key in notes}
    except ValueError:
        return {}
    return offer if offer.get("cpu", 0) > 0 and offer.get("memory", 0) > 0 else {}


def left_of(offer: dict[str, Fraction], pods: Iterable[Object]) -> dict[str, Fraction]:
    """Return the resources of an offer that its pods have not taken."""
    remaining = {**offer, "pods": Fraction(_PODS)}
    for pod in pods:
        if (pod.get("status") or {}).get("phase") in _FINISHED:
            continue
        requests = requests_of(pod)
        remaining = {
            name: amount - requests.get(name, Fraction(0)) for name, amount in remaining.items()
        }
    return {name: max(Fraction(0), amount) for name, amount in remaining.items()}


def refusal(pod: Object, remaining: dict[str, Fraction]) -> str:
    """Return the first resource that a pod requests more of than remains; "" if it fits."""
    for name, amount in sorted(requests_of(pod).items()):
        if amount > remaining.get(name, Fraction(0)):
            return name
    return ""


def node(host_node: Object, remaining: dict[str, Fraction], *, now: str) -> Draft:
    """Return the plane's Node for a host's node that offers resources."""
    name = host_node["metadata"]["name"]
    host_labels = host_node["metadata"].get("labels") or {}
    resources = {
        "cpu": canonical(f"{int(remaining['cpu'] * 1000)}m"),
        "memory": of_bytes(int(remaining["memory"])),
        "pods": str(int(remaining["pods"])),
    }
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "Offered",
        "message": f"the owner of node {name} offers it to pods without GPUs",
        "lastTransitionTime": now,
        "lastHeartbeatTime": now,
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": PREFIX + name,
            "labels": {
                **{key: value for key, value in host_labels.items() if key != labels.AGENT},
                "kubernetes.io/hostname": PREFIX + name,
                labels.OFFERED: name,
            },
        },
        "spec": {"providerID": f"bidplane://{name}/{PREFIX}{name}"},
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "conditions": [ready],
            "addresses": [{"type": "Hostname", "address": PREFIX + name}],
        },
    }
