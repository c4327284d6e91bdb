"""
How the GPUs of one machine are linked, and what follows: which are fit to work together.

A *link domain* is a set of GPUs that talk at full speed: those joined by NVLink; of those without
it, the ones on one PCIe host bridge whose links are trained at full width. A card trained below
what it could is *degraded*, and is a domain of its own: "first available" gives it away all the
same, and the work runs at half speed without a word.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from bidplane.api import labels
from bidplane.api.kinds import Object
from bidplane.core.mig import Profile
from bidplane.wire.quantity import parse

# Nearest first, as `nvidia-smi topo -m` names them.
NEAR = ("PIX", "PXB", "PHB", "NODE", "SYS")
_ONE_BRIDGE = ("PIX", "PXB", "PHB")

LINKS_ANNOTATION = "bidplane.dev/links"  # of a Node: what no attribute of one device can say

LEGEND = {
    "NV#": "# bonded NVLinks",
    "PIX": "at most one PCIe bridge",
    "PXB": "several PCIe bridges",
    "PHB": "a PCIe host bridge",
    "NODE": "host bridges of one NUMA node",
    "SYS": "the link between NUMA nodes",
}


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    uuid: str
    product: str
    memory: int  # bytes
    architecture: str = ""
    compute: str = ""  # "9.0"
    bus: str = ""  # "0000:3b:00.0"
    root: str = ""  # "pci0000:3a"
    numa: int = -1  # -1: the machine does not say
    width: int = 0  # PCIe lanes as trained now; 0: not known
    max_width: int = 0
    generation: int = 0
    max_generation: int = 0
    mig: bool = False  # can be cut
    mig_on: bool = False
    profiles: Mapping[str, Profile] = {}  # as the card says them; else by its memory
    xid: int = 0  # the last critical error, 0 if none

    @property
    def name(self) -> str:
        return f"gpu-{self.index}"

    @property
    def is_degraded(self) -> bool:
        """
        Fewer lanes than the card and its slot can do. The generation does not count: links slow
        down to save power when nothing uses them.
        """
        return 0 < self.width < self.max_width

    @property
    def link(self) -> str:
        """`x16 gen5`; what it could be, where it is less."""
        if not self.width:
            return "?"
        said = f"x{self.width}"
        if self.is_degraded:
            said += f"/{self.max_width}"
        return f"{said} gen{self.generation}" if self.generation else said


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    gpus: tuple[Gpu, ...]
    nvlinks: Mapping[tuple[int, int], int] = {}  # how many join two, the lower index first
    near: Mapping[tuple[int, int], str] = {}  # how close two are over PCIe
    driver: str = ""  # its version
    cuda: str = ""
    domains: tuple[tuple[int, ...], ...] = ()  # said by whoever declared it; else found

    def links(self, a: int, b: int) -> int:
        return self.nvlinks.get((min(a, b), max(a, b)), 0)

    def nearness(self, a: int, b: int) -> str:
        known = self.near.get((min(a, b), max(a, b)))
        if known:
            return known
        one, other = self._by_index(a), self._by_index(b)
        if one.root and one.root == other.root:
            return "PHB"
        return "NODE" if one.numa == other.numa and one.numa >= 0 else "SYS"

    def _by_index(self, index: int) -> Gpu:
        return next(gpu for gpu in self.gpus if gpu.index == index)


def link_domains(machine: Machine) -> list[tuple[int, ...]]:
    """The domains, each in order, the one with the lowest index first."""
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
    rest = [gpu for gpu in machine.gpus if gpu.index not in on_nvlink and not gpu.is_degraded]
    for at, gpu in enumerate(rest):
        for other in rest[at + 1 :]:
            same = (gpu.width, gpu.product) == (other.width, other.product)
            if same and machine.nearness(gpu.index, other.index) in _ONE_BRIDGE:
                join(gpu.index, other.index)
    found: dict[int, list[int]] = {}
    for index in sorted(leader):
        found.setdefault(find(index), []).append(index)
    return [tuple(found[first]) for first in sorted(found)]


def matrix(machine: Machine) -> list[list[str]]:
    """Rows as `nvidia-smi topo -m` prints them, with the PCIe link and the link domain."""
    gpus = machine.gpus
    where = {index: at for at, domain in enumerate(link_domains(machine)) for index in domain}
    rows = [["", *(f"GPU{gpu.index}" for gpu in gpus), "PCIe", "NUMA", "domain"]]
    for gpu in gpus:
        cells = [_cell(machine, gpu.index, other.index) for other in gpus]
        numa = str(gpu.numa) if gpu.numa >= 0 else "?"
        rows.append([f"GPU{gpu.index}", *cells, gpu.link, numa, str(where[gpu.index])])
    return rows


def _cell(machine: Machine, a: int, b: int) -> str:
    if a == b:
        return "X"
    links = machine.links(a, b)
    return f"NV{links}" if links else machine.nearness(a, b)


def legend(rows: list[list[str]]) -> str:
    said = {cell if not cell.startswith("NV") else "NV#" for row in rows[1:] for cell in row[1:-3]}
    return ", ".join(f"{name} {words}" for name, words in LEGEND.items() if name in said)


def tree(machine: Machine) -> Iterator[tuple[int, str]]:
    """Lines with their depth: NUMA node, PCIe root, card."""
    by_numa: dict[int, dict[str, list[Gpu]]] = {}
    for gpu in machine.gpus:
        by_numa.setdefault(gpu.numa, {}).setdefault(gpu.root, []).append(gpu)
    where = {index: at for at, domain in enumerate(link_domains(machine)) for index in domain}
    for numa, roots in sorted(by_numa.items()):
        yield 0, f"NUMA node {numa}" if numa >= 0 else "NUMA node not known"
        for root, gpus in sorted(roots.items()):
            yield 1, root or "PCIe root not known"
            for gpu in gpus:
                marks = [gpu.link, f"link domain {where[gpu.index]}"]
                if gpu.is_degraded:
                    marks.append("DEGRADED")
                if gpu.mig:
                    marks.append("MIG on" if gpu.mig_on else "MIG capable")
                if gpu.xid:
                    marks.append(f"XID {gpu.xid}")
                yield (
                    2,
                    f"GPU{gpu.index} {gpu.product} {gpu.bus} ({', '.join(marks)})".replace(
                        "  ", " "
                    ),
                )


def links_text(machine: Machine) -> str:
    """The links between devices, for the node's annotation."""
    said = {
        "nvlinks": {f"{a}-{b}": count for (a, b), count in sorted(machine.nvlinks.items())},
        "near": {f"{a}-{b}": near for (a, b), near in sorted(machine.near.items())},
    }
    return msgspec.json.encode(said).decode()


def read_machine(node: str, slices: Iterable[Object], annotation: str = "") -> Machine:
    """
    A node's machine from what is published of it, by our node or by another driver.

    Without the annotation, devices of one link domain that say they have NVLinks are taken to be
    joined by as many as they say.
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
            said = _plain(device.get("attributes") or {})
            if said.get(labels.TYPE_ATTRIBUTE, "gpu") != "gpu" or not said.get(
                labels.PRODUCT_ATTRIBUTE
            ):
                continue
            gpu = _read_gpu(len(gpus), device, said)
            gpus.append(gpu)
            domain = said.get(labels.LINK_DOMAIN_ATTRIBUTE)
            if domain:
                domains.setdefault(str(domain), []).append(gpu.index)
            links[gpu.index] = int(said.get("bidplane.dev/nvlinksPerPeer") or 0)
            driver = driver or str(said.get("driverVersion") or "")
            cuda = cuda or str(said.get("cudaDriverVersion") or "")
    nvlinks, near = _read_links(annotation)
    if not annotation:
        nvlinks = {
            (a, b): min(links[a], links[b])
            for found in domains.values()
            for a in found
            for b in found
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


def _plain(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: next(iter(value.values()), None) for name, value in attributes.items()}


def _read_gpu(at: int, device: Object, said: Mapping[str, Any]) -> Gpu:
    number = device["name"].rpartition("-")[2]
    memory = (device.get("capacity") or {}).get("memory") or {"value": "0"}
    taints = {taint["key"]: taint.get("value", "") for taint in device.get("taints") or ()}
    xid = taints.get("bidplane.dev/xid", "")

    def whole(name: str, default: int = 0) -> int:
        value = said.get(name)
        return value if isinstance(value, int) else default

    return Gpu(
        index=int(number) if number.isdigit() else at,
        uuid=str(said.get("uuid") or device["name"]),
        product=str(said[labels.PRODUCT_ATTRIBUTE]),
        memory=int(parse(memory["value"])),
        architecture=str(said.get("architecture") or ""),
        bus=str(said.get("resource.kubernetes.io/pciBusID") or ""),
        root=str(said.get("resource.kubernetes.io/pcieRoot") or ""),
        numa=whole("resource.kubernetes.io/numaNode", -1),
        width=whole("bidplane.dev/pcieLinkWidth"),
        max_width=whole("bidplane.dev/pcieMaxLinkWidth"),
        generation=whole("bidplane.dev/pcieLinkGeneration"),
        max_generation=whole("bidplane.dev/pcieMaxLinkGeneration"),
        mig=bool(said.get("bidplane.dev/migCapable")),
        xid=int(xid) if xid.isdigit() else 0,
    )


def _read_links(text: str) -> tuple[dict[tuple[int, int], int], dict[tuple[int, int], str]]:
    """Of an annotation anybody may have written: what cannot be read says nothing."""
    try:
        said = msgspec.json.decode(text or "{}", type=dict[str, dict[str, Any]])
        pairs = {
            kind: {_pair(key): value for key, value in said.get(kind, {}).items()}
            for kind in ("nvlinks", "near")
        }
    except (msgspec.MsgspecError, ValueError):
        return {}, {}
    return pairs["nvlinks"], pairs["near"]


def _pair(text: str) -> tuple[int, int]:
    a, _, b = text.partition("-")
    return int(a), int(b)
