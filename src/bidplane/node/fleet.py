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

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from bidplane.api import labels
from bidplane.api.money import parse_price
from bidplane.api.pool import Seconds
from bidplane.errors import UserError
from bidplane.wire.names import label_problems, subdomain_problems
from bidplane.wire.quantity import parse as parse_quantity

DRIVER = "gpu.bidplane.dev"
SIMULATED = "bidplane.dev/simulated"  # label of the nodes below
_LARGEST_NODE = 64
_LONGEST_PRODUCT = 63


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
    notice_seconds: Seconds = 30
    restart_seconds: Seconds = 30


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


def _problems(fleet: Fleet) -> Iterator[str]:
    seen: set[str] = set()
    if not fleet.nodes:
        yield "it declares no node"
    for node in fleet.nodes:
        if node.name in seen:
            yield f"node {node.name!r} is declared twice"
        seen.add(node.name)
        yield from _node_problems(node)
    yield from _pool_problems(fleet)


def _node_problems(node: NodeDeclaration) -> Iterator[str]:
    for problem in label_problems(node.name):
        yield f"node {node.name!r}: {problem}"
    # A product is the value of a label and, in lower case, the name of its pool.
    if len(node.product) > _LONGEST_PRODUCT or subdomain_problems(node.product.lower()):
        yield (
            f"node {node.name!r}: the product {node.product!r} must be 1 to {_LONGEST_PRODUCT}"
            " letters, digits, '-' and '.', for example 'H100-80GB'"
        )
    try:
        parse_quantity(node.memory)
    except ValueError:
        yield f"node {node.name!r}: {node.memory!r} is not an amount of memory, such as '80Gi'"
    if node.gpus and node.domains:
        yield f"node {node.name!r}: say `gpus` or `domains`, not both"
    count = sum(map(len, node.domains)) if node.domains else node.gpus
    if not 1 <= count <= _LARGEST_NODE or not all(node.domains):
        yield f"node {node.name!r} must have 1 to {_LARGEST_NODE} GPUs, at least one in a domain"
        return
    gpus = [gpu for domain in node.link_domains() for gpu in domain]
    if len(set(gpus)) != len(gpus):
        yield f"node {node.name!r} has one GPU twice in its domains"
    if min(gpus) < 0:
        yield f"node {node.name!r}: a GPU's number cannot be less than zero"


def _pool_problems(fleet: Fleet) -> Iterator[str]:
    products = fleet.products()
    pools = {product.lower() for product in products}
    if len(pools) != len(products):
        yield "two products differ only in upper and lower case"
    declared: set[str] = set()
    for pool in fleet.pools:
        if pool.product in declared:
            yield f"the pool of {pool.product!r} is declared twice"
        declared.add(pool.product)
        if pool.product not in products:
            yield f"the pool of {pool.product!r}: no node has that product"
        try:
            parse_price(pool.floor_price)
        except ValueError as error:
            yield f"the pool of {pool.product!r}: floorPrice: {error}"


def node_object(node: NodeDeclaration) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": node.name,
            "labels": {
                "kubernetes.io/hostname": node.name,
                "nvidia.com/gpu.product": node.product,
                SIMULATED: "true",
            },
        },
        "spec": {},
    }


def device_uuid(node: str, gpu: int) -> str:
    return f"GPU-{node}-{gpu}"


def slice_name(node: str) -> str:
    return f"{node}-gpus"


def slice_object(node: NodeDeclaration) -> dict[str, Any]:
    devices = [
        {
            "name": f"gpu-{gpu}",
            "attributes": {
                labels.PRODUCT_ATTRIBUTE: {"string": node.product},
                labels.LINK_DOMAIN_ATTRIBUTE: {"string": f"{node.name}/{index}"},
                "uuid": {"string": device_uuid(node.name, gpu)},
            },
            "capacity": {"memory": {"value": node.memory}},
        }
        for index, domain in enumerate(node.link_domains())
        for gpu in domain
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": slice_name(node.name)},
        "spec": {
            "driver": DRIVER,
            "nodeName": node.name,
            "pool": {"name": node.name, "generation": 1, "resourceSliceCount": 1},
            "devices": devices,
        },
    }
