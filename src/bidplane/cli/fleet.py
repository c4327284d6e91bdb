"""`bidplane fleet …`: the nodes, their GPUs, and how these are linked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cyclopts import App
from rich.tree import Tree

from bidplane.api.kinds import NODE, RESOURCE_SLICE
from bidplane.cli.common import Data, console, print_table, with_host
from bidplane.core import nodestate, topology
from bidplane.core.topology import LINKS_ANNOTATION, Machine
from bidplane.errors import UserError
from bidplane.kube.client import Client, Object

app = App(name="fleet", help="Nodes, their GPUs, and how these are linked.")


@app.command(name="list")
def list_(*, data: Data = None) -> None:
    """
    Every node: what GPUs it has, how they group, and what is wrong with it or them.

    Examples:
        bidplane fleet list
    """
    rows = []
    for machine, trouble in _machines(data):
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
                ", ".join(filter(None, (trouble, _notes(machine)))),
            ]
        )
    print_table(
        ["node", "GPUs", "product", "memory", "domains", "PCIe", "notes"],
        rows,
        right="GPUs memory",
    )


@app.command(name="topology")
def topology_(node: str, /, *, data: Data = None) -> None:
    """
    How a node's GPUs are linked: a matrix like `nvidia-smi topo -m`, and a tree.

    Examples:
        bidplane fleet topology h100-a
    """
    machines = {machine.name: machine for machine, _ in _machines(data)}
    if node not in machines:
        known = ", ".join(machines) or "none"
        raise UserError(f"no node {node!r} publishes GPUs: there are {known}")
    machine = machines[node]
    rows = topology.matrix(machine)
    for line in _lines(rows):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print(f"\n{topology.legend(rows)}", markup=False, highlight=False)
    console.print()
    root = Tree(node)
    branch = {-1: root}
    for depth, words in topology.tree(machine):
        style = "red" if "DEGRADED" in words or "XID" in words else ""
        branch[depth] = branch[depth - 1].add(words, style=style)
    console.print(root, highlight=False)


def _lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns no wider than they must be: eight GPUs stay within 80 columns."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return [
        " ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _notes(machine: Machine) -> str:
    gpus = machine.gpus
    counts = {
        "degraded": sum(gpu.is_degraded for gpu in gpus),
        "sick": sum(gpu.xid > 0 for gpu in gpus),
    }
    said = [f"{count} {what}" for what, count in counts.items() if count]
    if any(machine.nvlinks.values()):
        said.append("NVLink")
    if any(gpu.mig for gpu in gpus):
        said.append("MIG")
    return ", ".join(said)


def _machines(data: Path | None) -> list[tuple[Machine, str]]:
    """Each with why its node takes no pods, if it takes none."""

    async def read(host: Client) -> list[tuple[Machine, str]]:
        slices = (await host.list(RESOURCE_SLICE)).items
        nodes = {node["metadata"]["name"]: node for node in (await host.list(NODE)).items}
        named = {name for one in slices if (name := one["spec"].get("nodeName"))}
        found = [_machine(name, slices, nodes.get(name)) for name in sorted(named | nodes.keys())]
        return [(machine, trouble) for machine, trouble in found if machine.gpus]

    return with_host(data, read)


def _machine(name: str, slices: Sequence[Object], node: Object | None) -> tuple[Machine, str]:
    trouble = nodestate.GONE if node is None else nodestate.state_of(node).trouble
    notes = (node or {"metadata": {}})["metadata"].get("annotations") or {}
    machine = topology.read_machine(name, slices, notes.get(LINKS_ANNOTATION, ""))
    return machine, trouble.removeprefix("is ").removeprefix("has the ")
