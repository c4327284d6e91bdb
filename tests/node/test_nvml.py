"""NVML's answers as a machine, and as slices."""

import pynvml
import pytest

from bidplane.core.devices.topology import link_domains
from bidplane.errors import UserError
from bidplane.node.inventory.nvml import NvmlDevices, NvmlInventory

from .recorded import RecordedNvml, gpu


def devices(inventory):
    return {
        device["name"]: device
        for slice_ in inventory.slices()
        for device in slice_["spec"].get("devices") or ()
    }


def test_eight_cards_on_switches_are_one_domain(tmp_path):
    nvml = RecordedNvml([gpu(at) for at in range(8)], near={(0, 1): 20})
    machine = NvmlDevices("n", nvml=nvml, sysfs=tmp_path).machine()
    assert link_domains(machine) == [tuple(range(8))]
    assert machine.links(2, 7) == 18
    assert machine.nearness(0, 1) == "PXB"
    assert (machine.driver, machine.cuda) == ("580.126.09", "13.0")
    first = machine.gpus[0]
    assert (first.architecture, first.compute, first.bus) == ("Hopper", "9.0", "0000:1b:00.0")
    assert first.mig
    assert not first.mig_on


def test_bridges_join_two_and_a_slot_of_four_lanes_is_degraded(tmp_path):
    cards = [
        gpu(0, links=[1] * 4, numa=0),
        gpu(1, links=[0] * 4, numa=0),
        gpu(2, links=[], width=4),
        {key: value for key, value in gpu(3).items() if key not in ("links", "mig", "numa")},
    ]
    for at, numa in ((2, "1"), (3, "1")):
        real = tmp_path / "devices" / f"pci0000:{at}a" / f"0000:{0x1B + at * 8:02x}:00.0"
        real.mkdir(parents=True)
        (real / "numa_node").write_text(f"{numa}\n")
        (tmp_path / real.name).symlink_to(real)
    inventory = NvmlDevices("n", nvml=RecordedNvml(cards), sysfs=tmp_path, taint_degraded=True)
    machine = inventory.machine()
    assert link_domains(machine) == [(0, 1), (2,), (3,)]
    assert machine.links(0, 1) == 4
    assert machine.gpus[2].is_degraded
    assert (machine.gpus[3].root, machine.gpus[3].numa) == ("pci0000:3a", 1)
    assert not machine.gpus[3].mig
    found = devices(inventory)
    assert found["gpu-2"]["taints"][0]["key"] == "bidplane.dev/degraded"
    attributes = found["gpu-2"]["attributes"]
    assert attributes["bidplane.dev/pcieLinkWidth"] == {"int": 4}
    assert attributes["driverVersion"] == {"version": "580.126.9"}


def test_a_critical_error_is_a_taint_and_an_applications_is_not(tmp_path):
    nvml = RecordedNvml([gpu(0), gpu(1)])
    inventory = NvmlDevices("n", nvml=nvml, sysfs=tmp_path)
    nvml.events = [(0, 79), (1, 31)]  # fallen off the bus; a page fault of a program
    found = devices(inventory)
    assert found["gpu-0"]["taints"] == [
        {"key": "bidplane.dev/xid", "value": "79", "effect": "NoSchedule"}
    ]
    assert "taints" not in found["gpu-1"]
    assert "taints" in devices(inventory)["gpu-0"], "told once, known from then on"


def test_a_machine_without_a_driver_is_told_so():
    with pytest.raises(UserError, match="Driver Not Loaded; declare them with --fleet"):
        NvmlDevices("n", nvml=RecordedNvml([], broken=True))


def test_the_real_library_has_every_function_that_is_asked_for():
    wanted = {name for name in dir(NvmlInventory) if name.startswith("nvml")} | set(
        NvmlInventory.__annotations__
    )
    assert wanted <= set(dir(pynvml))
