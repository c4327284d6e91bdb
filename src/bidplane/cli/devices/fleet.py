"""`bidplane fleet …`: the nodes, their GPUs, and the links between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec
from cyclopts import App
from rich.tree import Tree

from bidplane.api import labels
from bidplane.api.kinds import NODE, POD, POOL, RESOURCE_CLAIM, RESOURCE_SLICE
from bidplane.api.reading import Invalid, read_pool
from bidplane.cli.common import Data, Json, console, print_json, print_table, with_host
from bidplane.core.devices import foreignuse, topology
from bidplane.core.devices.foreignuse import ForeignUse
from bidplane.core.devices.topology import LINKS_ANNOTATION, Machine
from bidplane.core.nodes import availability
from bidplane.errors import UserError
from bidplane.kube.client import KubeClient, Object

app = App(name="fleet", help="Nodes, their GPUs, and the links between them.")


@app.command(name="list")
def list_(*, json: Json = False, data: Data = None) -> None:
    """
    List every node: its GPUs, their link domains, and any problems.

    For example:
        bidplane fleet list
        bidplane fleet list --json | jq '.[] | {name, gpus: (.gpus | length)}'
    """
    machines = _machines(data)
    if json:
        print_json([_as_json(machine, trouble) for machine, trouble, _ in machines])
        return
    rows = []
    for machine, trouble, used in machines:
        first = machine.gpus[0]
        sizes = "+".join(str(len(domain)) for domain in topology.link_domains(machine))
        rows.append(
            [
                machine.name,
                str(len(machine.gpus)),
                first.product,
                f"{first.memory / 2**30:.0f}Gi",
                sizes,
                " ".join(dict.fromkeys(gpu.link.partition(" ")[0] for gpu in machine.gpus)),
                ", ".join(filter(None, (trouble, _notes(machine), used))),
            ]
        )
    print_table(
        ["node", "GPUs", "product", "memory", "domains", "PCIe", "notes"],
        rows,
        right="GPUs memory",
    )


@app.command(name="topology")
def topology_(node: str, /, *, json: Json = False, data: Data = None) -> None:
    """
    Show the links between a node's GPUs: a matrix like `nvidia-smi topo -m`, and a tree.

    For example:
        bidplane fleet topology h100-a
    """
    machines = {machine.name: (machine, trouble) for machine, trouble, _ in _machines(data)}
    if node not in machines:
        names = ", ".join(machines) or "none"
        raise UserError(f"no node {node!r} publishes GPUs; those that do: {names}")
    machine, trouble = machines[node]
    if json:
        print_json(_as_json(machine, trouble))
        return
    rows = topology.matrix(machine)
    for line in _lines(rows):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print(f"\n{topology.legend(rows)}", markup=False, highlight=False)
    console.print()
    root = Tree(node)
    branch = {-1: root}
    for depth, label in topology.tree(machine):
        style = "red" if "DEGRADED" in label or "XID" in label else ""
        branch[depth] = branch[depth - 1].add(label, style=style)
    console.print(root, highlight=False)


def _lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """The matrix as lines, with columns as narrow as possible: eight GPUs fit into 80 columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        " ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _as_json(machine: Machine, trouble: str) -> dict[str, object]:
    return {
        "name": machine.name,
        "trouble": trouble,
        "gpus": [
            {**msgspec.to_builtins(gpu), "link": gpu.link, "degraded": gpu.is_degraded}
            for gpu in machine.gpus
        ],
        "linkDomains": [list(domain) for domain in topology.link_domains(machine)],
        "nvlinks": [
            {"gpus": list(pair), "links": count} for pair, count in machine.nvlinks.items() if count
        ],
        "driver": machine.driver,
        "cuda": machine.cuda,
    }


def _notes(machine: Machine) -> str:
    gpus = machine.gpus
    counts = {
        "degraded": sum(gpu.is_degraded for gpu in gpus),
        "sick": sum(gpu.xid > 0 for gpu in gpus),
    }
    notes = [f"{count} {problem}" for problem, count in counts.items() if count]
    if any(machine.nvlinks.values()):
        notes.append("NVLink")
    if any(gpu.mig for gpu in gpus):
        notes.append("MIG")
    return ", ".join(notes)


def _unsold(machine: Machine, sold: Collection[str]) -> str:
    """Return the products of a machine that no Pool sells."""
    unsold = sorted({gpu.product for gpu in machine.gpus} - {*sold})
    return f"no Pool sells {', '.join(unsold)}" if unsold else ""


def _machines(data: Path | None) -> list[tuple[Machine, str, str]]:
    """
    Each machine with the reason why its node takes no pods, if any, and what of it is not ours.
    """

    async def read(host: KubeClient) -> list[tuple[Machine, str, str]]:
        slices = (await host.list(RESOURCE_SLICE)).items
        claims = map(foreignuse.held_by_claim, (await host.list(RESOURCE_CLAIM)).items)
        pods = (await host.list(POD, labels=f"!{labels.AGENT}")).items
        held_by_others = foreignuse.held(claims, map(foreignuse.held_by_pod, pods))
        nodes = {node["metadata"]["name"]: node for node in (await host.list(NODE)).items}
        node_names = {name for slice_ in slices if (name := slice_["spec"].get("nodeName"))}
        machines = [
            _machine(name, slices, nodes.get(name)) for name in sorted(node_names | nodes.keys())
        ]
        pools = map(read_pool, (await host.list(POOL)).items)
        sold = {pool.spec.product for pool in pools if not isinstance(pool, Invalid)}
        return [
            (
                machine,
                ", ".join(filter(None, (trouble, _unsold(machine, sold)))),
                _used(machine.name, slices, held_by_others),
            )
            for machine, trouble in machines
            if machine.gpus
        ]

    return with_host(data, read)


def _used(node: str, slices: Sequence[Object], held_by_others: ForeignUse) -> str:
    """A note on the devices of a node that are tainted or used by other workloads."""
    published = [
        (slice_["spec"], device)
        for slice_ in slices
        if slice_["spec"].get("nodeName") == node
        for device in slice_["spec"].get("devices") or ()
    ]
    devices = {(spec["driver"], spec["pool"]["name"], device["name"]) for spec, device in published}
    claims = sorted({claim for key, claim in held_by_others.devices.items() if key in devices})
    taints = Counter(
        taint["key"] for _, device in published for taint in device.get("taints") or ()
    )
    notes = [f"{count} tainted {key}" for key, count in sorted(taints.items())]
    if claims:
        count = len(devices & held_by_others.devices.keys())
        notes.append(f"{count} held by the claim{'s' * (len(claims) > 1)} {', '.join(claims)}")
    if node in held_by_others.nodes:
        notes.append(f"none for sale: {held_by_others.nodes[node]}, and its devices are not named")
    return ", ".join(notes)


def _machine(name: str, slices: Sequence[Object], node: Object | None) -> tuple[Machine, str]:
    trouble = availability.GONE if node is None else availability.state_of(node).trouble
    annotations_of_node = (node or {"metadata": {}})["metadata"].get("annotations") or {}
    machine = topology.read_machine(name, slices, annotations_of_node.get(LINKS_ANNOTATION, ""))
    return machine, trouble.removeprefix("is ").removeprefix("has the ")
