"""
NVML: the driver that is not here, for real; and a card, from a recording.

No GPU was at hand: `Recorded` answers as NVML's documentation says a card does. What a real
card says has not been seen.
"""

import asyncio
from types import SimpleNamespace

import pynvml
import pytest

from bidplane.errors import UserError
from bidplane.telemetry.model import ProcessMemory
from bidplane.telemetry.nvml import NvmlReader


class Lost(Exception):
    pass


class Recorded:
    """Two cards of a recording; the second supports little, and is trained at x4."""

    NVMLError = Lost
    NVML_TEMPERATURE_GPU, NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES = 0, 0, 1

    def __init__(self):
        self.open = 0
        self.broken = ""

    def nvmlInit(self):  # noqa: N802
        self.open += 1

    def nvmlShutdown(self):  # noqa: N802
        self.open -= 1

    def __getattr__(self, name):
        answers = {
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetUUID": lambda card: [b"GPU-a", "GPU-b"][card],
            "nvmlDeviceGetName": lambda card: b"NVIDIA H100",
            "nvmlDeviceGetUtilizationRates": lambda card: SimpleNamespace(gpu=97, memory=40),
            "nvmlDeviceGetMemoryInfo": lambda card: SimpleNamespace(used=60, free=20, total=80),
            "nvmlDeviceGetPowerUsage": lambda card: 412_500,
            "nvmlDeviceGetTemperature": lambda card, sensor: 61,
            "nvmlDeviceGetPcieThroughput": lambda card, counter: 100 + counter,
            "nvmlDeviceGetCurrPcieLinkWidth": lambda card: 16 if card == 0 else 4,
            "nvmlDeviceGetMaxPcieLinkWidth": lambda card: 16,
            "nvmlDeviceGetCurrPcieLinkGeneration": lambda card: 5,
            "nvmlDeviceGetComputeRunningProcesses": lambda card: [
                SimpleNamespace(pid=42, usedGpuMemory=50),
                SimpleNamespace(pid=43, usedGpuMemory=None),
            ],
        }
        few = ("Count", "HandleByIndex", "UUID", "PcieLinkWidth")

        def ask(*arguments):
            if name not in answers:
                raise Lost("Not Supported")
            if name == self.broken:
                raise Lost("GPU is lost")
            if arguments[:1] == (1,) and not name.endswith(few):
                raise Lost("Not Supported")
            return answers[name](*arguments)

        return ask


def test_a_card_and_one_that_tells_little():
    nvml = Recorded()
    first, second = asyncio.run(NvmlReader("box", nvml=nvml).read())
    assert nvml.open == 0, "the driver is let go"
    assert (first.node, first.index, first.uuid, first.product) == (
        "box",
        0,
        "GPU-a",
        "NVIDIA H100",
    )
    assert (first.utilisation_percent, first.memory_total_bytes) == (97.0, 80)
    assert (first.power_watts, first.temperature_celsius) == (412.5, 61)
    assert first.pcie_tx_bytes_per_second == 100 * 1024
    assert first.pcie_rx_bytes_per_second == 101 * 1024
    assert first.processes == (ProcessMemory(pid=42, bytes=50), ProcessMemory(pid=43))
    assert second.uuid == "GPU-b"
    assert second.link_is_degraded
    assert second.utilisation_percent is second.memory_used_bytes is second.power_watts is None
    assert second.processes == ()


class Cut(Recorded):
    """Its first card has MIG on, and one instance."""

    def __getattr__(self, name):
        answers = {
            "nvmlDeviceGetMigMode": lambda card: (1, 1),
            "nvmlDeviceGetMaxMigDeviceCount": lambda card: 7,
            "nvmlDeviceGetGpuInstanceId": lambda part: 9,
        }
        of_part = {
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=3, free=7),
            "nvmlDeviceGetName": "NVIDIA H100 MIG 1g.10gb",
            "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=7, usedGpuMemory=2)],
        }
        if name == "nvmlDeviceGetMigDeviceHandleByIndex":
            return self._part
        ask = super().__getattr__(name)

        def answer(*arguments):
            if arguments[:1] == ("part",):
                return of_part[name] if name in of_part else answers[name](*arguments)
            return answers[name](*arguments) if name in answers else ask(*arguments)

        return answer

    def _part(self, card, index):
        if (card, index) != (0, 2):
            raise Lost("Not Found")
        return "part"


def test_a_card_that_is_cut_tells_of_its_instances():
    first, part, _ = NvmlReader("box", nvml=Cut(), xids={"GPU-a": 63}).read_now()
    assert (first.instance, first.xid) == ("", 63)
    assert (part.uuid, part.profile, part.instance, part.xid) == ("GPU-a", "1g.10gb", "9", 63)
    assert (part.memory_used_bytes, part.memory_total_bytes) == (3, 10)
    assert part.processes == (ProcessMemory(pid=7, bytes=2),)
    assert part.utilisation_percent is None


def test_errors_are_known_only_to_who_listened():
    first, second = NvmlReader("box", nvml=Recorded()).read_now()
    assert first.xid is second.xid is None
    first, second = NvmlReader("box", nvml=Recorded(), xids={"GPU-b": 79}).read_now()
    assert (first.xid, second.xid) == (0, 79)


def test_a_card_that_is_lost_is_a_clear_line():
    nvml = Recorded()
    nvml.broken = "nvmlDeviceGetUUID"
    with pytest.raises(UserError, match="GPUs cannot be read: GPU is lost"):
        NvmlReader("box", nvml=nvml).read_now()
    assert nvml.open == 0


def test_a_machine_without_a_driver_says_so():
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        with pytest.raises(UserError, match="this machine's GPUs cannot be read"):
            NvmlReader("box").read_now()
    else:
        pynvml.nvmlShutdown()
        assert NvmlReader("box").read_now()
