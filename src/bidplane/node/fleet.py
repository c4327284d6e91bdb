"""
A declared fleet: nodes, their GPUs, and how these are linked.

    nodes:
      - name: h100-a
        product: H100
        memory: 80Gi
        domains: [[0, 1, 2, 3, 4, 5, 6, 7]]   # GPUs on one NVLink, or at full PCIe width

`gpus: 8` is short for one domain of eight.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from bidplane.api import labels
from bidplane.errors import UserError

DRIVER = "gpu.bidplane.dev"
_LARGEST_NODE = 64


class NodeDeclaration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    product: str
    memory: str = "80Gi"
    gpus: int = 0
    domains: list[list[int]] = []

    def link_domains(self) -> list[list[int]]:
        return self.domains or [list(range(self.gpus))]


class PoolDeclaration(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"
):
    """Terms of sale for a product; a product without one is sold on the default terms."""

    product: str
    floor_price: str = "0.10"
    notice_seconds: int = 30
    restart_seconds: int = 30


class Fleet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    nodes: list[NodeDeclaration]
    pools: list[PoolDeclaration] = []

    def products(self) -> list[str]:
        return sorted({node.product for node in self.nodes})


def load(path: Path) -> Fleet:
    """The fleet a file declares; raises `UserError` that names what is wrong in it."""
    try:
        fleet = msgspec.yaml.decode(path.read_bytes(), type=Fleet)
    except OSError as error:
        raise UserError(f"cannot read the fleet file {path}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise UserError(f"the fleet file {path} is not valid: {error}") from error
    for problem in _problems(fleet):
        raise UserError(f"the fleet file {path} is not valid: {problem}")
    return fleet


def _problems(fleet: Fleet) -> list[str]:
    problems = []
    seen: set[str] = set()
    if not fleet.nodes:
        problems.append("it declares no node")
    for node in fleet.nodes:
        if node.name in seen:
            problems.append(f"node {node.name!r} is declared twice")
        seen.add(node.name)
        gpus = [gpu for domain in node.link_domains() for gpu in domain]
        if not 1 <= len(gpus) <= _LARGEST_NODE:
            problems.append(f"node {node.name!r} must have 1 to {_LARGEST_NODE} GPUs")
        if len(set(gpus)) != len(gpus):
            problems.append(f"node {node.name!r} has one GPU in two domains")
    return problems


def node_object(node: NodeDeclaration) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": node.name,
            "labels": {
                "kubernetes.io/hostname": node.name,
                "nvidia.com/gpu.product": node.product,
                "bidplane.dev/simulated": "true",
            },
        },
        "spec": {},
    }


def slice_object(node: NodeDeclaration) -> dict[str, Any]:
    devices = [
        {
            "name": f"gpu-{gpu}",
            "attributes": {
                labels.PRODUCT_ATTRIBUTE: {"string": node.product},
                labels.LINK_DOMAIN_ATTRIBUTE: {"string": f"{node.name}/{index}"},
                "uuid": {"string": f"GPU-{node.name}-{gpu}"},
            },
            "capacity": {"memory": {"value": node.memory}},
        }
        for index, domain in enumerate(node.link_domains())
        for gpu in domain
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node.name}-gpus"},
        "spec": {
            "driver": DRIVER,
            "nodeName": node.name,
            "pool": {"name": node.name, "generation": 1, "resourceSliceCount": 1},
            "devices": devices,
        },
    }
