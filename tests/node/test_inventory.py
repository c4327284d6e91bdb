"""A machine as ResourceSlices: what is published, and that real Kubernetes takes it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bidplane.core.devices import mig
from bidplane.core.devices.claims.check import counter_problems
from bidplane.core.devices.claims.model import AllocatedDevices, DeviceRequest, read_slices
from bidplane.core.devices.claims.pools import Slices
from bidplane.core.devices.topology import Gpu, Machine, read_machine
from bidplane.node import fleet as fleets
from bidplane.node.fleet import Card, NodeDeclaration, machine_of
from bidplane.node.inventory import DeclaredDevices, uuids
from bidplane.node.inventory.slices import degraded, slices_of
from bidplane.testing.cluster import Cluster

DEFAULT = Path(fleets.__file__).parent.parent / "data" / "fleet.yaml"
BOX = NodeDeclaration(
    name="box",
    product="RTX-6000",
    memory="48Gi",
    cards=[Card(), Card(width=4, max_width=16, numa=1, root="pci0000:10")],
)


def devices(machine: Machine, **options: Any) -> dict[str, Any]:
    return {
        device["name"]: device
        for slice_ in slices_of(machine, **options)
        for device in slice_["spec"].get("devices") or ()
    }


def test_attributes_have_the_names_others_publish() -> None:
    found = devices(machine_of(BOX))["gpu-1"]["attributes"]
    assert found["productName"] == {"string": "RTX-6000"}
    assert found["type"] == {"string": "gpu"}
    assert found["resource.kubernetes.io/numaNode"] == {"int": 1}
    assert found["resource.kubernetes.io/pcieRoot"] == {"string": "pci0000:10"}
    assert found["bidplane.dev/pcieLinkWidth"] == {"int": 4}
    assert found["bidplane.dev/pcieMaxLinkWidth"] == {"int": 16}
    assert found["bidplane.dev/degraded"] == {"bool": True}
    assert found["bidplane.dev/linkDomain"] == {"string": "box/1"}
    assert found["cudaComputeCapability"] == {"version": "8.9.0"}


def test_of_a_declared_card_no_topology_is_published_but_what_is_declared() -> None:
    found = devices(machine_of(BOX))["gpu-0"]["attributes"]
    assert not [name for name in found if name.startswith("resource.kubernetes.io/")]


def test_a_degraded_link_is_said_and_can_be_a_taint() -> None:
    machine = machine_of(BOX)
    (words,) = degraded(slices_of(machine))
    assert words.startswith("gpu-1: its PCIe link is trained at x4 of x16")
    assert "taints" not in devices(machine)["gpu-1"]
    tainted = devices(machine, taint_degraded=True)
    assert tainted["gpu-1"]["taints"][0]["effect"] == "NoSchedule"
    assert "taints" not in tainted["gpu-0"]


def test_what_is_published_can_be_read_back() -> None:
    for node in fleets.load(DEFAULT).nodes:
        machine = machine_of(node)
        annotation = fleets.node_object(node)["metadata"]["annotations"]["bidplane.dev/links"]
        again = read_machine(node.name, slices_of(machine), annotation)
        assert [g.link for g in again.gpus] == [g.link for g in machine.gpus]
        assert again.nvlinks == machine.nvlinks
        # Without the annotation: from what the devices say each for itself.
        assert read_machine(node.name, slices_of(machine)).nvlinks == machine.nvlinks


def test_devices_are_known_by_their_uuid() -> None:
    found = uuids(DeclaredDevices(BOX).slices())
    assert found["gpu.bidplane.dev", "box", "gpu-0"] == "GPU-box-0"


@pytest.mark.parametrize("memory", ["40Gi", "80Gi", "141Gi", "180Gi"])
def test_counters_allow_exactly_the_layouts_the_hardware_has(memory: str) -> None:
    """Any set of instances: what the counters say, the table of placements says."""
    machine = machine_of(NodeDeclaration(name="n", product="A100", memory=memory, gpus=1, mig=True))
    slices = read_slices(slices_of(machine))
    pools = Slices(slices).pools("n", {})
    gigabytes = int(memory.removesuffix("Gi"))
    slots = [
        mig.Slot(name, start)
        for name, profile in mig.profiles(gigabytes).items()
        for start in profile.starts
    ]
    parts = {
        (d.raw["attributes"]["profile"]["string"], int(d.id.name.rpartition("-")[2])): d
        for d in pools[0].devices
        if d.raw["attributes"]["type"]["string"] == "mig"
    }
    assert len(parts) == len(slots)
    request = DeviceRequest("r", "", "c", False, 1, (), (), False, {})
    dice = random.Random(memory)
    agreed = {True: 0, False: 0}
    unset: dict[str, Any] = {}
    for _ in range(1500):
        chosen = dice.sample(slots, dice.randrange(1, 6))
        uses = [(0, request, parts[slot.profile, slot.start], unset) for slot in chosen]
        fits = not list(counter_problems(uses, pools, AllocatedDevices()))
        assert fits == (not mig.problem(chosen, gigabytes)), chosen
        agreed[fits] += 1
    assert min(agreed.values()) > 20


def test_a_whole_gpu_leaves_nothing_to_cut() -> None:
    machine = machine_of(NodeDeclaration(name="n", product="A100", gpus=1, mig=True))
    pools = Slices(read_slices(slices_of(machine))).pools("n", {})
    request = DeviceRequest("r", "", "c", False, 1, (), (), False, {})
    whole, *parts = pools[0].devices
    unset: dict[str, Any] = {}
    for part in parts:
        uses = [(0, request, whole, unset), (0, request, part, unset)]
        assert list(counter_problems(uses, pools, AllocatedDevices()))


def test_a_card_not_in_the_table_is_cut_as_it_says_itself() -> None:
    """An RTX PRO 6000 Blackwell has four slices; of its memory no table knows."""
    said = {
        "1g.24gb": mig.Profile(1, 1, (0, 1, 2, 3)),
        "2g.48gb": mig.Profile(2, 2, (0, 2)),
        "4g.96gb": mig.Profile(4, 4, (0,)),
    }
    gpu = Gpu(index=0, uuid="GPU-0", product="RTX-PRO-6000", memory=96 << 30, mig=True)
    assert len(slices_of(Machine(name="n", gpus=(gpu,)))) == 1, "whole only, if it does not say"
    machine = Machine(name="n", gpus=(msgspec.structs.replace(gpu, profiles=said),))
    found = devices(machine)
    assert len(found) == 1 + 7
    assert found["gpu-0-mig-2g48gb-2"]["capacity"]["memory"]["value"] == "48Gi"
    (counters,) = (
        s["spec"]["sharedCounters"] for s in slices_of(machine) if "sharedCounters" in s["spec"]
    )
    assert counters[0]["counters"]["compute-slices"] == {"value": "4"}
    assert "memory-slice-4" not in counters[0]["counters"]


@pytest.mark.kube
def test_real_kubernetes_takes_every_slice(cluster: Cluster) -> None:
    items = [one for node in fleets.load(DEFAULT).nodes for one in slices_of(machine_of(node))]
    listing = {"apiVersion": "v1", "kind": "List", "items": items}
    cluster.kubectl("apply", "-f", "-", input=json.dumps(listing))
    found = json.loads(cluster.kubectl("get", "resourceslices", "-o", "json").stdout)["items"]
    assert {one["metadata"]["name"] for one in items} <= {s["metadata"]["name"] for s in found}
    cluster.kubectl("delete", "resourceslices", "--all")
