"""
A declared fleet: nodes, their GPUs, and how these are linked.

    nodes:
      - name: h100-a
        product: H100
        memory: 80Gi
        gpus: 8
        nvlink: 18        # links between any two of a domain; without it they meet over PCIe
        generation: 5     # of PCIe
        cpu: 128          # of the machine, for all its pods; so is hostMemory
        hostMemory: 1Ti
        offers: {cpu: 8, memory: 32Gi}   # of that, to pods without GPUs
      - name: a100-a
        product: A100
        gpus: 4
        mig: true         # can be cut into MIG instances
      - name: box
        product: RTX-6000
        cards:            # one by one, where they differ
          - {width: 16, numa: 0, root: "pci0000:10"}
          - {width: 4, maxWidth: 16, numa: 1}

`gpus: 8` is short for one domain of eight; `domains: [[0, 1], [2]]` lists the GPUs of each link
domain. With `cards` the domains follow from their fields; unset fields are not published.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from bidplane.api import labels
from bidplane.api.kinds import Object
from bidplane.api.money import parse_price
from bidplane.api.pool import CHAIN, Chain, Divides, MigSlot, Seconds
from bidplane.core.devices.chain import chain_problem
from bidplane.core.devices.topology import LINKS_ANNOTATION, Gpu, Machine, link_domains, links_text
from bidplane.errors import UserError
from bidplane.wire.names import label_problems, subdomain_problems
from bidplane.wire.quantity import parse as parse_quantity

SIMULATED = "bidplane.dev/simulated"  # label of the nodes below
_LARGEST_NODE = 64
_LONGEST_PRODUCT = 63
_WIDTHS = (1, 2, 4, 8, 16, 32)
# By the beginning of the product's name: architecture, compute capability.
_ARCHITECTURES = {
    "A100": ("Ampere", "8.0"),
    "A30": ("Ampere", "8.0"),
    "H100": ("Hopper", "9.0"),
    "H200": ("Hopper", "9.0"),
    "B200": ("Blackwell", "10.0"),
    "L40": ("Ada Lovelace", "8.9"),
    "RTX-6000": ("Ada Lovelace", "8.9"),
}


class Card(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """One GPU, where the cards of a node differ."""

    width: int = 16  # PCIe lanes as trained
    max_width: int = 0  # of card and slot; 0: as `width`
    generation: int = 0  # of PCIe; 0: the node's
    numa: int = -1  # its NUMA node; -1: unknown
    root: str = ""  # its PCIe host bridge, such as "pci0000:10"; "": unknown
    nvlink: list[int] = []  # the cards it is bridged to


class CpuOffer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """CPU and memory of a node that its owner offers to pods without GPUs."""

    cpu: str | int
    memory: str


class NodeDeclaration(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    rename={"taint_degraded": "taintDegraded", "host_memory": "hostMemory"},
):
    """One node of a fleet file."""

    name: str
    product: str
    memory: str = "80Gi"
    gpus: int = 0
    domains: list[list[int]] = []
    cards: list[Card] = []
    nvlink: int = 0  # links between any two GPUs of a domain
    width: int = 16
    generation: int = 4
    mig: bool = False
    taint_degraded: bool = False  # nothing new goes to cards below their full width
    cpu: str | int = "128"  # what the machine has for all its pods
    host_memory: str = "1Ti"  # likewise; `memory` is a GPU's
    offers: CpuOffer | None = None  # of that, to pods without GPUs

    def link_domains(self) -> list[list[int]]:
        """The node's GPUs by link domain."""
        if self.cards:
            return [list(domain) for domain in link_domains(machine_of(self))]
        return self.domains or [list(range(self.gpus))]


class PoolDeclaration(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"
):
    """Terms of sale for a product; a product without one is sold on the default terms."""

    product: str
    floor_price: str = "0.10"
    notice_seconds: Seconds = 30
    restart_seconds: Seconds = 30
    chain: Chain = msgspec.field(default_factory=lambda: list(CHAIN))
    divides: Divides = Divides.WHOLE
    geometry: list[MigSlot] = []
    instant_float_percent: Annotated[int, msgspec.Meta(ge=0, le=5)] = 0
    idle_seconds: Seconds = 300


class Fleet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a fleet file."""

    nodes: list[NodeDeclaration]
    pools: list[PoolDeclaration] = []
    seed: int = 0  # of the random choices of simulated pods

    def products(self) -> list[str]:
        """All products of the fleet."""
        return sorted({node.product for node in self.nodes})


def load(path: Path) -> Fleet:
    """Read a fleet file; raises `UserError` that names what is wrong in it."""
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
    """The problems in a fleet file."""
    names: set[str] = set()
    if not fleet.nodes:
        yield "it declares no node"
    for node in fleet.nodes:
        if node.name in names:
            yield f"node {node.name!r} is declared twice"
        names.add(node.name)
        yield from _node_problems(node)
    yield from _pool_problems(fleet)


def _node_problems(node: NodeDeclaration) -> Iterator[str]:
    """The problems in a node's declaration."""
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
    yield from _room_problems(node)
    if sum(map(bool, (node.gpus, node.domains, node.cards))) > 1:
        yield f"node {node.name!r}: set only one of `gpus`, `domains` and `cards`"
    for field, width in _widths(node):
        if width not in _WIDTHS:
            widths = ", ".join(map(str, _WIDTHS))
            yield f"node {node.name!r}: {field}: {width} is no PCIe width; there are {widths}"
    for number, card in enumerate(node.cards):
        if card.max_width and card.max_width < card.width:
            yield (
                f"node {node.name!r}: cards[{number}]: width {card.width} is more than its maxWidth"
                f" {card.max_width}"
            )
        if any(not 0 <= peer < len(node.cards) or peer == number for peer in card.nvlink):
            yield f"node {node.name!r}: cards[{number}].nvlink names a card that does not exist"
    count = sum(map(len, node.domains)) if node.domains else node.gpus or len(node.cards)
    if not 1 <= count <= _LARGEST_NODE or not all(node.domains):
        yield f"node {node.name!r} must have 1 to {_LARGEST_NODE} GPUs, at least one in a domain"
        return
    gpus = [gpu for domain in node.link_domains() for gpu in domain]
    if len(set(gpus)) != len(gpus):
        yield f"node {node.name!r} has one GPU twice in its domains"
    if min(gpus) < 0:
        yield f"node {node.name!r}: a GPU's number cannot be less than zero"


def _room_problems(node: NodeDeclaration) -> Iterator[str]:
    """The problems in a node's CPU, memory and offers."""
    amounts = {"cpu": node.cpu, "hostMemory": node.host_memory}
    if node.offers is not None:
        amounts |= {"offers.cpu": node.offers.cpu, "offers.memory": node.offers.memory}
    numbers = {}
    for field, amount in amounts.items():
        try:
            numbers[field] = parse_quantity(amount)
        except ValueError:
            yield f"node {node.name!r}: {field}: {amount!r} is not an amount, such as '8' or '32Gi'"
            return
        if numbers[field] <= 0:
            yield f"node {node.name!r}: {field}: {amount!r} must be more than zero"
    for offered, total in (("offers.cpu", "cpu"), ("offers.memory", "hostMemory")):
        if numbers.get(offered, 0) > numbers[total]:
            yield f"node {node.name!r}: {offered} is more than its {total}, {amounts[total]}"


def _pool_problems(fleet: Fleet) -> Iterator[str]:
    """The problems in the pools."""
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
        if pool.divides is Divides.MIG:
            for node in fleet.nodes:
                if node.product == pool.product and not node.mig:
                    yield (
                        f"the pool of {pool.product!r} divides GPUs by MIG, and node {node.name!r}"
                        " cannot: say `mig: true` there"
                    )
        if problem := chain_problem(pool.chain):
            yield f"the pool of {pool.product!r}: chain: {problem}"
        try:
            parse_price(pool.floor_price)
        except ValueError as error:
            yield f"the pool of {pool.product!r}: floorPrice: {error}"


def node_object(node: NodeDeclaration) -> Object:
    """The Node object of a declared node."""
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
            "annotations": {key: text for key, text in node_annotations(node).items() if text},
        },
        "spec": {},
    }


def node_annotations(node: NodeDeclaration) -> dict[str, str | None]:
    """The annotations of the node's Node object; None for one that it must not have."""
    offers = node.offers
    return {
        LINKS_ANNOTATION: links_text(machine_of(node)),
        labels.OFFERS_CPU: str(offers.cpu) if offers else None,
        labels.OFFERS_MEMORY: offers.memory if offers else None,
    }


def device_uuid(node: str, gpu: int) -> str:
    """The UUID of a declared GPU."""
    return f"GPU-{node}-{gpu}"


def machine_of(node: NodeDeclaration) -> Machine:
    """The machine that a declaration describes, with no topology but the declared one."""
    cards = node.cards or [
        Card(width=node.width) for _ in range(node.gpus or 1 + max(map(max, node.domains)))
    ]
    indexes = (
        sorted(gpu for domain in node.domains for gpu in domain)
        if node.domains
        else list(range(len(cards)))
    )
    architecture = next(
        (v for name, v in _ARCHITECTURES.items() if node.product.startswith(name)), ("", "")
    )
    gpus = tuple(_gpu(node, index, cards[index], architecture) for index in indexes)
    nvlinks: dict[tuple[int, int], int] = {}
    if node.nvlink and not node.cards:
        for domain in node.domains or [indexes]:
            nvlinks |= {(a, b): node.nvlink for a in domain for b in domain if a < b}
    for index, card in enumerate(node.cards):
        for peer in card.nvlink:
            nvlinks[min(index, peer), max(index, peer)] = node.nvlink or 4
    return Machine(
        name=node.name,
        gpus=gpus,
        nvlinks=nvlinks,
        # Declared link domains are taken as they are.
        domains=() if node.cards else tuple(map(tuple, node.domains or [indexes])),
    )


def _gpu(node: NodeDeclaration, index: int, card: Card, architecture: tuple[str, str]) -> Gpu:
    """One declared GPU."""
    generation = card.generation or node.generation
    return Gpu(
        index=index,
        uuid=device_uuid(node.name, index),
        product=node.product,
        memory=int(parse_quantity(node.memory)),
        architecture=architecture[0],
        compute=architecture[1],
        root=card.root,
        numa=card.numa,
        width=card.width,
        max_width=card.max_width or card.width,
        generation=generation,
        max_generation=generation,
        mig=node.mig,
    )


def _widths(node: NodeDeclaration) -> Iterator[tuple[str, int]]:
    """Each declared PCIe width, with its field."""
    yield "width", node.width
    for number, card in enumerate(node.cards):
        yield f"cards[{number}].width", card.width
        if card.max_width:
            yield f"cards[{number}].maxWidth", card.max_width
