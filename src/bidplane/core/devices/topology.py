"""
The links between the GPUs of one machine, and the link domains that follow from them.

A *link domain* is a set of GPUs that talk at full speed: those joined by NVLink; among those
without it, the ones on one PCIe host bridge whose links are trained at full width. The bridge of a
card is declared or read, never guessed: cards with an unknown bridge count as sharing their NUMA
node, or their machine, and are one domain if they are equally wide. A card trained below its
capability is *degraded* and is a domain of its own, because work on it together with others would
silently run at half speed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from bidplane.api import labels
from bidplane.api.kinds import Object
from bidplane.core.devices.mig import Profile
from bidplane.wire.quantity import parse

# Nearest first, as `nvidia-smi topo -m` names them.
NEAR = ("PIX", "PXB", "PHB", "NODE", "SYS")
_ONE_BRIDGE = ("PIX", "PXB", "PHB")
UNKNOWN = "?"  # the distance between two cards is not declared

LINKS_ANNOTATION = "bidplane.dev/links"  # of a Node: the links between its devices

LEGEND = {
    "NV#": "# bonded NVLinks",
    "PIX": "at most one PCIe bridge",
    "PXB": "several PCIe bridges",
    "PHB": "a PCIe host bridge",
    "NODE": "host bridges of one NUMA node",
    "SYS": "the link between NUMA nodes",
    UNKNOWN: "not declared",
}


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU as its node reports it."""

    index: int
    uuid: str
    product: str
    memory: int  # bytes
    architecture: str = ""
    compute: str = ""  # "9.0"
    bus: str = ""  # "0000:3b:00.0"
    root: str = ""  # "pci0000:3a"
    numa: int = -1  # -1: unknown
    width: int = 0  # PCIe lanes as trained now; 0: unknown
    max_width: int = 0
    generation: int = 0
    max_generation: int = 0
    mig: bool = False  # can be cut
    mig_on: bool = False
    profiles: Mapping[str, Profile] = {}  # as reported by the card; {}: by its memory
    xid: int = 0  # the last critical error, 0 if none

    @property
    def name(self) -> str:
        return f"gpu-{self.index}"

    @property
    def is_degraded(self) -> bool:
        """
        Return whether fewer lanes are trained than the card and its slot support.

        The generation does not count: idle links slow down to save power.
        """
        return 0 < self.width < self.max_width

    @property
    def link(self) -> str:
        """
        The PCIe link as text, such as `x16 gen5`; with the possible width where it is degraded.
        """
        if not self.width:
            return "?"
        text = f"x{self.width}"
        if self.is_degraded:
            text += f"/{self.max_width}"
        return f"{text} gen{self.generation}" if self.generation else text


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs of a machine and the links between them."""

    name: str
    gpus: tuple[Gpu, ...]
    nvlinks: Mapping[tuple[int, int], int] = {}  # how many join two, the lower index first
    near: Mapping[tuple[int, int], str] = {}  # how close two are over PCIe
    driver: str = ""  # its version
    cuda: str = ""
    domains: tuple[tuple[int, ...], ...] = ()  # as declared; () to derive them

    def links(self, a: int, b: int) -> int:
        """Return the number of NVLinks between two GPUs."""
        return self.nvlinks.get((min(a, b), max(a, b)), 0)

    def nearness(self, a: int, b: int) -> str:
        """Return how close two GPUs are over PCIe, as `nvidia-smi topo -m` names it."""
        declared = self.near.get((min(a, b), max(a, b)))
        if declared:
            return declared
        first, second = self._by_index(a), self._by_index(b)
        if first.root and first.root == second.root:
            return "PHB"
        if first.numa < 0 or second.numa < 0:
            return UNKNOWN
        return "NODE" if first.numa == second.numa else "SYS"

    def shares_bridge(self, a: int, b: int) -> bool:
        """
        Return whether two GPUs are on one PCIe host bridge, as far as that is declared or read.
        """
        if (min(a, b), max(a, b)) in self.near:
            return self.nearness(a, b) in _ONE_BRIDGE
        first, second = self._by_index(a), self._by_index(b)
        return (first.root, first.numa) == (second.root, second.numa)

    def _by_index(self, index: int) -> Gpu:
        return next(gpu for gpu in self.gpus if gpu.index == index)


def link_domains(machine: Machine) -> list[tuple[int, ...]]:
    """Return the link domains as sorted indexes, the one with the lowest index first."""
    if machine.domains:
        return sorted(tuple(sorted(domain)) for domain in machine.domains)
    leader = {gpu.index: gpu.index for gpu in machine.gpus}

    def find(index: int) -> int:
        while leader[index] != index:
            index = leader[index]
        return index

    def join(a: int, b: int) -> None:
        low, high = sorted((find(a), find(b)))
        leader[high] = low

    on_nvlink = {index for pair, count in machine.nvlinks.items() if count for index in pair}
    for (a, b), count in machine.nvlinks.items():
        if count:
            join(a, b)
    without_nvlink = [
        gpu for gpu in machine.gpus if gpu.index not in on_nvlink and not gpu.is_degraded
    ]
    for position, gpu in enumerate(without_nvlink):
        for other in without_nvlink[position + 1 :]:
            alike = (gpu.width, gpu.product) == (other.width, other.product)
            if alike and machine.shares_bridge(gpu.index, other.index):
                join(gpu.index, other.index)
    domains: dict[int, list[int]] = {}
    for index in sorted(leader):
        domains.setdefault(find(index), []).append(index)
    return [tuple(domains[first]) for first in sorted(domains)]


def matrix(machine: Machine) -> list[list[str]]:
    """Return rows as `nvidia-smi topo -m` prints them, with the PCIe link and the link domain."""
    gpus = machine.gpus
    domain_of = {
        index: number for number, domain in enumerate(link_domains(machine)) for index in domain
    }
    rows = [["", *(f"GPU{gpu.index}" for gpu in gpus), "PCIe", "NUMA", "domain"]]
    for gpu in gpus:
        cells = [_cell(machine, gpu.index, other.index) for other in gpus]
        numa = str(gpu.numa) if gpu.numa >= 0 else "?"
        rows.append([f"GPU{gpu.index}", *cells, gpu.link, numa, str(domain_of[gpu.index])])
    return rows


def _cell(machine: Machine, a: int, b: int) -> str:
    if a == b:
        return "X"
    links = machine.links(a, b)
    return f"NV{links}" if links else machine.nearness(a, b)


def legend(rows: list[list[str]]) -> str:
    """Return the meaning of the symbols that occur in the rows of a matrix."""
    symbols = {
        cell if not cell.startswith("NV") else "NV#" for row in rows[1:] for cell in row[1:-3]
    }
    return ", ".join(f"{name} {meaning}" for name, meaning in LEGEND.items() if name in symbols)


def tree(machine: Machine) -> Iterator[tuple[int, str]]:
    """Yield lines with their depth: NUMA node, PCIe root, card."""
    by_numa: dict[int, dict[str, list[Gpu]]] = {}
    for gpu in machine.gpus:
        by_numa.setdefault(gpu.numa, {}).setdefault(gpu.root, []).append(gpu)
    domain_of = {
        index: number for number, domain in enumerate(link_domains(machine)) for index in domain
    }
    for numa, roots in sorted(by_numa.items()):
        yield 0, f"NUMA node {numa}" if numa >= 0 else "NUMA node not known"
        for root, gpus in sorted(roots.items()):
            yield 1, root or "PCIe root not known"
            for gpu in gpus:
                details = [gpu.link, f"link domain {domain_of[gpu.index]}"]
                if gpu.is_degraded:
                    details.append("DEGRADED")
                if gpu.mig:
                    details.append("MIG on" if gpu.mig_on else "MIG capable")
                if gpu.xid:
                    details.append(f"XID {gpu.xid}")
                yield (
                    2,
                    f"GPU{gpu.index} {gpu.product} {gpu.bus} ({', '.join(details)})".replace(
                        "  ", " "
                    ),
                )


def links_text(machine: Machine) -> str:
    """Return the links between devices as the text of the node's annotation."""
    links = {
        "nvlinks": {f"{a}-{b}": count for (a, b), count in sorted(machine.nvlinks.items())},
        "near": {f"{a}-{b}": near for (a, b), near in sorted(machine.near.items())},
    }
    return msgspec.json.encode(links).decode()


def read_machine(node: str, slices: Iterable[Object], annotation: str = "") -> Machine:
    """
    Return a node's machine from the published slices, of our node agent or of another driver.

    Without the annotation, devices of one link domain that report NVLinks count as joined by as
    many as they report.
    """
    gpus: list[Gpu] = []
    domains: dict[str, list[int]] = {}
    links: dict[int, int] = {}
    driver = cuda = ""
    for slice_ in slices:
        spec = slice_["spec"]
        if spec.get("nodeName") != node:
            continue
        for device in spec.get("devices") or ():
            attributes = _attribute_values(device.get("attributes") or {})
            if attributes.get(labels.TYPE_ATTRIBUTE, "gpu") != "gpu" or not attributes.get(
                labels.PRODUCT_ATTRIBUTE
            ):
                continue
            gpu = _read_gpu(len(gpus), device, attributes)
            gpus.append(gpu)
            domain = attributes.get(labels.LINK_DOMAIN_ATTRIBUTE)
            if domain:
                domains.setdefault(str(domain), []).append(gpu.index)
            links[gpu.index] = int(attributes.get("bidplane.dev/nvlinksPerPeer") or 0)
            driver = driver or str(attributes.get("driverVersion") or "")
            cuda = cuda or str(attributes.get("cudaDriverVersion") or "")
    nvlinks, near = _read_links(annotation)
    if not annotation:
        nvlinks = {
            (a, b): min(links[a], links[b])
            for members in domains.values()
            for a in members
            for b in members
            if a < b and links[a] and links[b]
        }
    return Machine(
        name=node,
        gpus=tuple(sorted(gpus, key=lambda gpu: gpu.index)),
        nvlinks=nvlinks,
        near=near,
        driver=driver,
        cuda=cuda,
        domains=tuple(map(tuple, domains.values()))
        if sum(map(len, domains.values())) == len(gpus)
        else (),
    )


def _attribute_values(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: next(iter(value.values()), None) for name, value in attributes.items()}


def _read_gpu(position: int, device: Object, attributes: Mapping[str, Any]) -> Gpu:
    """Return the GPU that a published device describes."""
    number = device["name"].rpartition("-")[2]
    memory = (device.get("capacity") or {}).get("memory") or {"value": "0"}
    taints = {taint["key"]: taint.get("value", "") for taint in device.get("taints") or ()}
    xid = taints.get("bidplane.dev/xid", "")

    def whole(name: str, default: int = 0) -> int:
        value = attributes.get(name)
        return value if isinstance(value, int) else default

    return Gpu(
        index=int(number) if number.isdigit() else position,
        uuid=str(attributes.get("uuid") or device["name"]),
        product=str(attributes[labels.PRODUCT_ATTRIBUTE]),
        memory=int(parse(memory["value"])),
        architecture=str(attributes.get("architecture") or ""),
        bus=str(attributes.get("resource.kubernetes.io/pciBusID") or ""),
        root=str(attributes.get("resource.kubernetes.io/pcieRoot") or ""),
        numa=whole("resource.kubernetes.io/numaNode", -1),
        width=whole("bidplane.dev/pcieLinkWidth"),
        max_width=whole("bidplane.dev/pcieMaxLinkWidth"),
        generation=whole("bidplane.dev/pcieLinkGeneration"),
        max_generation=whole("bidplane.dev/pcieMaxLinkGeneration"),
        mig=bool(attributes.get("bidplane.dev/migCapable")),
        xid=int(xid) if xid.isdigit() else 0,
    )


def _read_links(text: str) -> tuple[dict[tuple[int, int], int], dict[tuple[int, int], str]]:
    """
    Return the NVLinks and distances of an annotation, which anyone may write; {} if unreadable.
    """
    try:
        links = msgspec.json.decode(text or "{}", type=dict[str, dict[str, Any]])
        pairs = {
            kind: {_pair(key): value for key, value in links.get(kind, {}).items()}
            for kind in ("nvlinks", "near")
        }
    except (msgspec.MsgspecError, ValueError):
        return {}, {}
    return pairs["nvlinks"], pairs["near"]


def _pair(text: str) -> tuple[int, int]:
    a, _, b = text.partition("-")
    return int(a), int(b)
