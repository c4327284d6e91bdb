"""What runs is measured, and told in a kubelet's shapes; who keeps too much is evicted."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bidplane.node import stats
from bidplane.node.process.sandbox.limits import Cgroups
from bidplane.node.process.usage import counters
from bidplane.node.process.volumes import tmpfs
from bidplane.node.stats import ContainerUse, CpuRates, Disk, NodeUse, PodUse, Sample
from bidplane.telemetry import dcgm
from bidplane.telemetry.model import Holder

from .processes import NoCgroups

BURN = """
import time
held = bytearray(60 * 1000 * 1000)
end = time.process_time() + 0.4
while time.process_time() < end: pass
print("burnt", flush=True)
time.sleep(600)
"""


def mounted():
    return Path("/proc/self/mounts").read_text()


def sample(at=1000.0, cpu=2.5, memory=100):
    return Sample(at=at, cpu_seconds=cpu, working_set=memory, usage=memory + 1, rss=memory)


def node(**container):
    one = ContainerUse(**{"name": "main", "started": 990.0, "sample": sample(), **container})
    pod = PodUse(
        namespace="team", name="web", uid="u", started=980.0, containers=[one, one],
        volumes={"v": Disk(at=1000.0, used=7)}, network=(5, 6),
    )  # fmt: skip
    return NodeUse(name="box", booted=0.0, memory=1000, sample=sample(), pods=[pod])


def test_metrics_server_finds_every_sample_with_its_time():
    page = stats.resource_metrics(node()).decode()
    found = {
        one.name: one for family in text_string_to_metric_families(page) for one in family.samples
    }
    cpu = found["container_cpu_usage_seconds_total"]
    assert (cpu.value, cpu.timestamp) == (2.5, 1000.0)
    assert cpu.labels == {"container": "main", "namespace": "team", "pod": "web"}
    assert found["pod_memory_working_set_bytes"].value == 200
    assert found["node_cpu_usage_seconds_total"].timestamp == 1000.0
    assert found["container_start_time_seconds"].value == 990.0
    assert found["resource_scrape_error"].value == 0
    assert "# HELP node_memory_working_set_bytes [STABLE] Current working set" in page


def test_a_summary_has_node_pods_containers_volumes():
    told = stats.summary(node(), CpuRates())
    assert told["node"]["nodeName"] == "box"
    assert told["node"]["memory"]["availableBytes"] == 900
    [pod] = told["pods"]
    assert pod["podRef"] == {"name": "web", "namespace": "team", "uid": "u"}
    assert pod["cpu"]["usageCoreNanoSeconds"] == 5_000_000_000
    assert pod["containers"][0]["memory"]["workingSetBytes"] == 100
    assert pod["volume"][0]["usedBytes"] == pod["ephemeral-storage"]["usedBytes"] == 7
    assert pod["network"]["interfaces"] == [{"name": "eth0", "rxBytes": 5, "txBytes": 6}]


def test_cores_are_what_was_used_between_two_looks():
    rates = CpuRates()
    assert rates.cores(("a",), sample(at=10.0, cpu=5.0), started=0.0) == 0.5  # since it began
    assert rates.cores(("a",), sample(at=20.0, cpu=25.0), started=0.0) == 2.0
    assert rates.cores(("a",), sample(at=20.5, cpu=25.5), started=0.0) == pytest.approx(20.5 / 10.5)
    assert rates.cores(("a",), sample(at=30.0, cpu=25.0), started=0.0) == 0.0
    # Another run of it: its time begins again.
    assert rates.cores(("a",), sample(at=40.0, cpu=1.0), started=38.0) == 0.5


@pytest.mark.parametrize("counted", ["cgroups", "proc"])
def test_time_and_memory_are_those_of_the_processes(box, counted):
    async def story(box):
        began = box.clock.now()
        await box.create(
            "burns",
            "/usr/bin/python3",
            "-c",
            BURN,
            volumeMounts=[{"name": "v", "mountPath": "/v"}],
            pod={"volumes": [{"name": "v", "emptyDir": {}}]},
            resources={"limits": {"memory": "900Mi", "cpu": 2}} if counted == "cgroups" else {},
        )
        await box.until_phase("burns", "Running")
        await box.until_said("burns", "burnt\n")
        assert (await box.exec("burns", "sh", "-c", "head -c 3000000 /dev/zero > /v/x"))[0] == 0
        use = await box.node.runtime.meter.read(disks=True)
        [pod] = use.pods
        [container] = pod.containers
        # Since before it was asked for: the sandbox takes time before it says that it has started.
        longest = (container.sample.at - began) * os.cpu_count() + 0.1
        assert 0.4 <= container.sample.cpu_seconds < longest
        assert 60e6 < container.sample.working_set < 200e6
        assert container.sample.at >= container.started > 0
        assert use.sample.cpu_seconds > container.sample.cpu_seconds
        assert use.sample.working_set > container.sample.working_set
        assert 3_000_000 <= pod.volumes["v"].used < 3_300_000
        assert container.logs.used > 0
        assert pod.processes >= 1
        assert "node_memory" in stats.resource_metrics(use).decode()
        await box.delete("burns", grace_seconds=0)
        await box.until(lambda: not box.node.runtime.pods())
        assert not (await box.node.runtime.meter.read(disks=True)).pods

    if counted == "cgroups":
        groups = Cgroups("bidplane-look")
        groups.close()
        if "memory" not in groups.controllers:
            pytest.skip("no memory cgroup can be written")
        box(story)
    else:
        box(story, cgroups=NoCgroups("none"))


def test_children_of_any_thread_are_counted():
    program = """
import subprocess, threading
thread = threading.Thread(target=lambda: subprocess.run(["sleep", "600"]))
thread.start()
print(flush=True)
thread.join()
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        process.stdout.readline()
        while len(counters.tree(process.pid)) < 2:
            assert process.poll() is None
    finally:
        for pid in reversed(counters.tree(process.pid)):
            subprocess.run(["kill", "-9", str(pid)], check=False)
        process.wait()
        process.stdout.close()


def test_a_folders_size_is_what_it_takes_on_the_disk(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a").write_bytes(bytes(1_000_000))
    (tmp_path / "again").hardlink_to(tmp_path / "deep" / "a")
    (tmp_path / "away").symlink_to("/usr")
    size, files = counters._folder_usage(tmp_path)
    assert 1_000_000 <= size < 1_100_000
    assert files == 4  # itself, a folder, a file, a link
    assert counters._folder_usage(tmp_path / "nowhere") == (0, 0)


def test_who_fills_an_emptydir_past_its_limit_is_evicted(box):
    async def story(box):
        await box.create(
            "fills",
            "head -c 500000 /dev/zero > /v/x; echo half; sleep 600",
            volumeMounts=[{"name": "v", "mountPath": "/v"}],
            pod={
                "restartPolicy": "Always",
                "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}],
            },
        )
        await box.until_phase("fills", "Running")
        await box.until_said("fills", "half\n")
        box.clock.advance(11)

        async def looked_at():
            [pod] = (await box.node.runtime.meter.read(disks=True)).pods
            return pod.volumes["v"].used > 400_000

        await box.until(looked_at)
        assert await box.phase("fills") == "Running"  # half of it is no reason
        await box.exec("fills", "sh", "-c", "head -c 2000000 /dev/zero > /v/y")
        box.clock.advance(11)
        pod = await box.until_phase("fills", "Failed")
        assert pod["status"]["reason"] == "Evicted"
        assert pod["status"]["message"] == (
            'Usage of EmptyDir volume "v" exceeds the limit "1Mi". '
        )
        assert "exceeds the limit" in await box.until_event("fills", "Evicted")

    box(story)


@pytest.mark.skipif(not tmpfs.is_permitted(), reason="it takes root to mount")
def test_an_emptydir_in_memory_is_one_and_is_gone_with_its_pod(box):
    async def story(box):
        await box.create(
            "fast",
            "stat -f -c %T /v; head -c 2000000 /dev/zero > /v/x; stat -c %s /v/x; sleep 600",
            volumeMounts=[{"name": "v", "mountPath": "/v"}],
            pod={"volumes": [{"name": "v", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}]},
        )
        pod = await box.until_phase("fast", "Running")

        async def full():
            return "tmpfs" in await box.logs("fast") and "1048576" in await box.logs("fast")

        await box.until(full)
        # After a restart of the agent it is the same, with what is in it.
        await box.stop()
        await box.start()
        await box.until_phase("fast", "Running")
        assert (await box.exec("fast", "stat", "-c", "%s", "/v/x"))[1] == "1048576\n"
        folder = box.settings.pods / pod["metadata"]["uid"]
        await box.delete("fast", grace_seconds=0)
        await box.until(lambda: not folder.exists())
        assert str(folder) not in mounted()

    box(story)


def test_declared_gpus_say_who_holds_them_and_what_the_holder_uses(box):
    async def story(box):
        await box.claim("two", "gpu-1")
        await box.create(
            "burns",
            *("/usr/bin/python3", "-c", BURN),
            resources={"claims": [{"name": "gpus"}]},
            pod={"resourceClaims": [{"name": "gpus", "resourceClaimName": "two"}]},
        )

        async def burnt():
            return await box.phase("burns") == "Running" and "burnt" in await box.logs("burns")

        await box.until(burnt)
        slices = box.inventory.slices()
        page = dcgm.exposition(box.node.runtime.declared(slices)).decode()
        free, held = dcgm.counters(dcgm.parse(page))
        assert (free.declared, free.holder, free.holder_processes) == (True, None, ())
        assert free.product == held.product == "H100"
        assert (held.declared, held.index) == (True, 1)
        assert held.holder == Holder(namespace=box.space, pod="burns", container="main")
        [process] = held.holder_processes
        assert process.memory_bytes > 60_000_000
        assert process.cpu_seconds >= 0.3
        assert "DCGM_FI_DEV_GPU_UTIL{" not in page, "nobody measured it"
        assert "DCGM_FI_DEV_FB_USED{" not in page
        await box.delete("burns", grace_seconds=0)
        await box.until(lambda: box.node.runtime.declared(slices)[1].holder is None)

    box(story)
