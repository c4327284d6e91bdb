"""DCGM's names: what is exported is read back; what others export is read too."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bidplane.telemetry import dcgm
from bidplane.telemetry.dcgm import Point
from bidplane.telemetry.model import Counters, Holder, HolderProcess, ProcessMemory
from bidplane.telemetry.simulated import Load, simulated_counters

# A busy machine is not a fault.
BUSY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
TEXT = st.text(st.characters(codec="ascii", exclude_characters="\r"), min_size=1, max_size=12)
MIBS = st.none() | st.integers(0, 200_000).map(lambda mib: mib * dcgm.MIB)
WHOLE = st.none() | st.integers(0, 200)
SECONDS = st.floats(0, 1e9)
REAL = st.none() | st.floats(0, 1e12, allow_nan=False)


@st.composite
def some_counters(draw):
    count = draw(st.integers(0, 4))
    return [
        Counters(
            node=f"node-{at % 2}",
            index=at,
            uuid=f"GPU-{at}",
            product=draw(TEXT),
            instance=(instance := draw(st.sampled_from(["", "7", "13"]))),
            profile="1g.10gb" if instance else "",
            processes=tuple(
                ProcessMemory(pid=pid, bytes=draw(st.integers(0, 200 << 30)))
                for pid in range(draw(st.integers(0, 2)))
            ),
            declared=draw(st.booleans()),
            holder_processes=tuple(
                HolderProcess(pid=pid, memory_bytes=pid << 20, cpu_seconds=draw(SECONDS))
                for pid in range(draw(st.integers(0, 2)))
            ),
            # Whoever tells nothing at all is not there: one value is always told.
            utilisation_percent=draw(st.floats(0, 100)),
            memory_used_bytes=draw(MIBS),
            memory_free_bytes=draw(MIBS),
            power_watts=draw(REAL),
            temperature_celsius=draw(REAL),
            pcie_tx_bytes_per_second=draw(REAL),
            pcie_rx_bytes_per_second=draw(REAL),
            pcie_link_width=draw(WHOLE),
            pcie_link_width_max=draw(WHOLE),
            pcie_link_generation=draw(WHOLE),
            xid=draw(WHOLE),
            holder=draw(st.none() | st.builds(Holder, namespace=TEXT, pod=TEXT, container=TEXT)),
        )
        for at in range(count)
    ]


@BUSY
@given(some_counters())
def test_what_is_exported_is_read_back(sent):
    got = dcgm.counters(dcgm.parse(dcgm.exposition(sent).decode()))
    assert got == sorted(sent, key=lambda device: (device.node, device.index))


# Lines as dcgm-exporter 4 prints them.
REAL_PAGE = """\
# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a",pci_bus_id="00000000:1B:00.0",device="nvidia0",\
modelName="NVIDIA H100 80GB HBM3",Hostname="box",container="main",namespace="ml",pod="train"} 97
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-b",device="nvidia1",modelName="NVIDIA H100 80GB HBM3",\
hostname="box"} 0
# HELP DCGM_FI_DEV_FB_USED Framebuffer memory used (in MiB).
# TYPE DCGM_FI_DEV_FB_USED gauge
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-a",device="nvidia0",modelName="NVIDIA H100 80GB HBM3",\
Hostname="box",container="main",namespace="ml",pod="train"} 61234
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-a",GPU_I_ID="7",GPU_I_PROFILE="1g.10gb",Hostname="box"} 12
# HELP DCGM_FI_PROF_GR_ENGINE_ACTIVE Ratio of time the graphics engine is active.
# TYPE DCGM_FI_PROF_GR_ENGINE_ACTIVE gauge
DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0",UUID="GPU-a",GPU_I_ID="7",GPU_I_PROFILE="1g.10gb",\
Hostname="box"} 0.43
process_cpu_seconds_total 4
"""


def test_a_real_exporters_page():
    first, part, second = dcgm.counters(dcgm.parse(REAL_PAGE))
    assert (part.index, part.uuid, part.profile, part.instance) == (0, "GPU-a", "1g.10gb", "7")
    assert (part.memory_used_bytes, part.engine_percent) == (12 * dcgm.MIB, 43.0)
    assert first.profile == "", "what an instance tells is not its GPU's"
    assert (first.node, first.index, first.product) == ("box", 0, "NVIDIA H100 80GB HBM3")
    assert first.utilisation_percent == 97
    assert first.memory_used_bytes == 61234 * dcgm.MIB
    assert first.memory_free_bytes is None, "what is not told is not zero"
    assert first.holder == Holder(namespace="ml", pod="train", container="main")
    assert (second.node, second.holder, second.utilisation_percent) == ("box", None, 0)


@pytest.mark.parametrize(
    ("labels", "node"),
    [
        ({"Hostname": "a", "hostname": "b"}, "a"),
        ({"hostname": "b", "instance": "10.0.0.1:9400"}, "b"),
        ({"node": "c"}, "c"),
        ({"instance": "10.0.0.1:9400"}, "10.0.0.1"),
    ],
)
def test_the_node_by_any_of_its_names(labels, node):
    point = Point("DCGM_FI_DEV_GPU_UTIL", {"UUID": "GPU-a", "gpu": "0", **labels}, 1.0)
    assert [device.node for device in dcgm.counters([point])] == [node]


def test_what_prometheus_renamed_is_whose_it_is():
    labels = {"UUID": "u", "pod": "dcgm-exporter", "namespace": "gpu-operator"}
    labels |= {"exported_pod": "train", "exported_namespace": "ml"}
    (device,) = dcgm.counters([Point("DCGM_FI_DEV_GPU_UTIL", labels, 1.0)])
    assert device.holder == Holder(namespace="ml", pod="train")


def test_not_a_number_is_not_a_value():
    labels = {"UUID": "u", "gpu": "0", "Hostname": "n"}
    (device,) = dcgm.counters([Point("DCGM_FI_DEV_FB_USED", labels, float("nan"))])
    assert device.memory_used_bytes is None


@BUSY
@given(
    now=st.floats(0, 2e9),
    busy=st.floats(0, 1000),
    memory=st.floats(0, 1000),
    size=st.integers(1 << 30, 200 << 30),
    held=st.booleans(),
)
def test_a_simulated_device_is_within_its_bounds(now, busy, memory, size, held):
    def ask(moment):
        return simulated_counters(
            node="n",
            index=0,
            uuid="u",
            product="H100",
            memory_bytes=size,
            now=moment,
            load=Load(
                holder=Holder(namespace="a", pod="b") if held else None,
                busy_percent=busy,
                memory_percent=memory,
            ),
        )

    device = ask(now)
    assert device == ask(float(int(now))), "the same all second long"
    assert 0 <= device.utilisation_percent <= 100
    assert device.memory_total_bytes == size
    assert 0 <= device.memory_used_bytes <= size
    assert held or device.utilisation_percent == 0


def test_a_degraded_link():
    device = Counters(node="n", index=0, uuid="u", pcie_link_width=4, pcie_link_width_max=16)
    assert device.link_is_degraded
    assert not Counters(node="n", index=0, uuid="u", pcie_link_width=4).link_is_degraded
