"""A lease in the agent's plane: a node with exactly the leased devices, and its notice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidplane.api import labels
from bidplane.core.leases import nodes
from bidplane.wire.quantity import parse
from core.structs import as_lease

DEVICES = [
    {"node": "h100-a", "driver": "gpu.bidplane.dev", "pool": "h100-a", "name": f"gpu-{index}"}
    for index in (2, 3)
]


NODE = {"metadata": {"name": "lease-1", "uid": "node-uid"}}


def lease(phase="Active", devices=DEVICES, **status):
    return as_lease(
        {
            "metadata": {"name": "lease-1", "namespace": "agent-a", "uid": "l1"},
            "spec": {
                "agent": "a",
                "bid": {"namespace": "agent-a", "name": "b", "uid": "b1"},
                "pool": "h100",
                "node": "h100-a",
                "devices": devices,
                "maxPrice": "2",
            },
            "status": {"phase": phase, **status},
        }
    )


def host_slice(driver="gpu.bidplane.dev", pool="h100-a", node="h100-a", product="H100", gpus=8):
    return {
        "metadata": {"name": f"{pool}-{driver}"},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": pool, "generation": 1, "resourceSliceCount": 1},
            "devices": [
                {"name": f"gpu-{i}", "attributes": {"productName": {"string": product}}}
                for i in range(gpus)
            ],
        },
    }


def products(slice_):
    return [device["attributes"]["productName"]["string"] for device in slice_["spec"]["devices"]]


def test_node_slice_and_mirror_carry_the_leases_name():
    assert nodes.mirror(lease(), "default")["metadata"]["name"] == "lease-1"
    assert nodes.node(lease(), None)["metadata"]["name"] == "lease-1"
    assert nodes.resource_slice(lease(), [], NODE)["metadata"]["name"] == "lease-1"


def test_the_mirror_stays_until_the_lease_is_over():
    mirror = nodes.mirror(lease(), "team")
    assert mirror["metadata"]["finalizers"] == [labels.LEASE_FINALIZER]
    assert mirror["metadata"]["namespace"] == "team"
    assert mirror["spec"] == lease().json["spec"]


def host_node(**offers):
    room = {"cpu": "100", "memory": "1000Gi", "pods": "50", "ephemeral-storage": "80Gi"}
    notes = {f"bidplane.dev/offers-{name}": amount for name, amount in offers.items()}
    return {
        "metadata": {"name": "h100-a", "annotations": notes},
        "status": {"allocatable": {**room, "example.com/fpga": "4"}},
    }


def test_capacity_is_the_leased_gpus_part_of_what_the_machine_has():
    status = nodes.node_status(lease(), host_node(), 8, now="now")
    assert status["capacity"] == {
        labels.GPU_RESOURCE: "2",
        "cpu": "25",
        "memory": "250Gi",
        "ephemeral-storage": "20Gi",
        "pods": "50",
    }
    assert status["allocatable"] == status["capacity"]


def test_what_the_owner_offers_to_others_is_no_leases():
    status = nodes.node_status(lease(), host_node(cpu="20", memory="200Gi"), 8, now="now")
    assert (status["capacity"]["cpu"], status["capacity"]["memory"]) == ("20", "200Gi")


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=8),
    st.integers(1, 999_999),
    st.integers(1, 2**42),
)
def test_all_leases_of_a_machine_together_have_no_more_than_it_has(sizes, millis, memory):
    there = {"cpu": f"{millis}m", "memory": str(memory)}
    machine = {"metadata": {"name": "h100-a"}, "status": {"allocatable": there}}
    rooms = []
    for size in sizes:
        held = lease(devices=[{**DEVICES[0], "name": f"gpu-{n}"} for n in range(size)])
        rooms.append(nodes.room(held, machine, sum(sizes)))
    assert sum(parse(room["cpu"]) for room in rooms) <= parse(there["cpu"])
    assert sum(parse(room["memory"]) for room in rooms) <= memory


def test_a_part_of_a_gpu_has_that_part_of_its_machines_share():
    eighths = lease(devices=[{**DEVICES[0], "share": "1/4", "slots": [0, 1]}])
    assert nodes.room(eighths, host_node(), 8)["cpu"] == "3125m"


def test_the_node_has_the_hosts_labels_and_its_own_name():
    host = {"metadata": {"labels": {"zone": "b", "kubernetes.io/hostname": "h100-a"}}}
    node = nodes.node(lease(), host)
    assert node["metadata"]["labels"] == {
        "zone": "b",
        "kubernetes.io/hostname": "lease-1",
        labels.LEASE: "lease-1",
    }


@pytest.mark.parametrize("phase", ["Pending", "Active"])
def test_a_lease_that_is_held_has_no_taint(phase):
    assert nodes.taints(lease(phase)) == []
    conditions = nodes.node_status(lease(phase), None, 8, now="now")["conditions"]
    assert [(c["type"], c["status"]) for c in conditions] == [
        ("Ready", "True"),
        ("ReclaimNotice", "False"),
    ]


def test_a_notice_is_a_taint_and_a_condition_that_says_until_when():
    draining = lease("Draining", reason="Outbid", reclaimAt="2026-01-01T00:00:30Z")
    assert nodes.taints(draining) == [{"key": labels.RECLAIM_TAINT, "effect": "NoSchedule"}]
    notice = nodes.node_status(draining, None, 8, now="now")["conditions"][1]
    assert (notice["status"], notice["reason"]) == ("True", "Outbid")
    assert "2026-01-01T00:00:30Z" in notice["message"]


def test_a_notice_without_reason_or_time_is_still_a_notice():
    notice = nodes.node_status(lease("Draining"), None, 8, now="now")["conditions"][1]
    assert (notice["status"], notice["reason"]) == ("True", "None")


def test_the_slice_has_the_leased_devices_and_no_other():
    slice_ = nodes.resource_slice(lease(), [host_slice()], NODE)
    assert [device["name"] for device in slice_["spec"]["devices"]] == ["gpu-2", "gpu-3"]
    assert products(slice_) == ["H100", "H100"]
    assert slice_["spec"]["nodeName"] == "lease-1"


def test_a_device_is_known_by_driver_and_pool_too():
    """Two slices of one node may each have a gpu-2."""
    others = [
        host_slice(driver="gpu.example.com", product="T4"),
        host_slice(pool="other", product="L4"),
        host_slice(node="h100-b", product="A100"),
    ]
    for slices in ([host_slice(), *others], [*others, host_slice()]):
        assert products(nodes.resource_slice(lease(), slices, NODE)) == ["H100", "H100"]


def test_a_device_the_host_no_longer_shows_keeps_its_name():
    slice_ = nodes.resource_slice(lease(), [], NODE)
    assert slice_["spec"]["devices"] == [{"name": "gpu-2"}, {"name": "gpu-3"}]


def test_a_part_says_whether_it_is_isolated():
    def node_of(share):
        device = {"node": "n", "driver": "d", "pool": "n", "name": "gpu-0"}
        part = lease(devices=[{**device, "share": share}])
        return nodes.node(part, None)["metadata"]["labels"].get("bidplane.dev/isolation")

    assert (node_of("1/2"), node_of("1g.10gb"), node_of("")) == ("none", "mig", None)


@pytest.mark.parametrize(
    ("whole", "quarter"),
    [("80Gi", "20Gi"), ("81559Mi", "20879104Ki"), ("81G", "20250M"), ("1.5Gi", "384Mi")],
)
def test_a_part_has_exactly_its_eighths_in_whatever_unit(whole, quarter):
    part = lease(devices=[{**DEVICES[0], "share": "1/4", "slots": [0, 1]}])
    host = host_slice()
    host["spec"]["devices"][2]["capacity"] = {"memory": {"value": whole}}
    (device,) = nodes.resource_slice(part, [host], NODE)["spec"]["devices"]
    assert device["capacity"]["memory"]["value"] == quarter
