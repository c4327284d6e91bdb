"""A lease in the agent's plane: a node with exactly the leased devices, and its notice."""

import pytest

from bidplane.api import labels
from bidplane.core import leasenodes

DEVICES = [
    {"node": "h100-a", "driver": "gpu.bidplane.dev", "pool": "h100-a", "name": f"gpu-{index}"}
    for index in (2, 3)
]


NODE = {"metadata": {"name": "lease-1", "uid": "node-uid"}}


def lease(phase="Active", **status):
    return {
        "metadata": {"name": "lease-1", "namespace": "agent-a", "uid": "l1"},
        "spec": {
            "agent": "a",
            "bid": {"namespace": "agent-a", "name": "b", "uid": "b1"},
            "pool": "h100",
            "node": "h100-a",
            "devices": DEVICES,
            "maxPrice": "2",
        },
        "status": {"phase": phase, **status},
    }


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
    assert leasenodes.mirror(lease(), "default")["metadata"]["name"] == "lease-1"
    assert leasenodes.node(lease(), None)["metadata"]["name"] == "lease-1"
    assert leasenodes.resource_slice(lease(), [], NODE)["metadata"]["name"] == "lease-1"


def test_the_mirror_stays_until_the_lease_is_over():
    mirror = leasenodes.mirror(lease(), "team")
    assert mirror["metadata"]["finalizers"] == [labels.LEASE_FINALIZER]
    assert mirror["metadata"]["namespace"] == "team"
    assert mirror["spec"] == lease()["spec"]


def test_capacity_is_what_was_leased():
    status = leasenodes.node_status(lease(), now="now")
    assert status["capacity"][labels.GPU_RESOURCE] == "2"
    assert status["allocatable"] == status["capacity"]


def test_the_node_has_the_hosts_labels_and_its_own_name():
    host = {"metadata": {"labels": {"zone": "b", "kubernetes.io/hostname": "h100-a"}}}
    node = leasenodes.node(lease(), host)
    assert node["metadata"]["labels"] == {
        "zone": "b",
        "kubernetes.io/hostname": "lease-1",
        labels.LEASE: "lease-1",
    }


@pytest.mark.parametrize("phase", ["Pending", "Active"])
def test_a_lease_that_is_held_has_no_taint(phase):
    assert leasenodes.taints(lease(phase)) == []
    conditions = leasenodes.node_status(lease(phase), now="now")["conditions"]
    assert [(c["type"], c["status"]) for c in conditions] == [
        ("Ready", "True"),
        ("ReclaimNotice", "False"),
    ]


def test_a_notice_is_a_taint_and_a_condition_that_says_until_when():
    draining = lease("Draining", reason="Outbid", reclaimAt="2026-01-01T00:00:30Z")
    assert leasenodes.taints(draining) == [{"key": labels.RECLAIM_TAINT, "effect": "NoSchedule"}]
    notice = leasenodes.node_status(draining, now="now")["conditions"][1]
    assert (notice["status"], notice["reason"]) == ("True", "Outbid")
    assert "2026-01-01T00:00:30Z" in notice["message"]


def test_a_notice_without_reason_or_time_is_still_a_notice():
    notice = leasenodes.node_status(lease("Draining"), now="now")["conditions"][1]
    assert (notice["status"], notice["reason"]) == ("True", "None")


def test_the_slice_has_the_leased_devices_and_no_other():
    slice_ = leasenodes.resource_slice(lease(), [host_slice()], NODE)
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
        assert products(leasenodes.resource_slice(lease(), slices, NODE)) == ["H100", "H100"]


def test_a_device_the_host_no_longer_shows_keeps_its_name():
    slice_ = leasenodes.resource_slice(lease(), [], NODE)
    assert slice_["spec"]["devices"] == [{"name": "gpu-2"}, {"name": "gpu-3"}]


def test_a_part_says_whether_it_is_isolated():
    def node_of(share):
        device = {"node": "n", "driver": "d", "pool": "n", "name": "gpu-0"}
        lease = {
            "metadata": {"name": "lease-1"},
            "spec": {"node": "n", "devices": [{**device, **({"share": share} if share else {})}]},
        }
        return leasenodes.node(lease, None)["metadata"]["labels"].get("bidplane.dev/isolation")

    assert (node_of("1/2"), node_of("1g.10gb"), node_of("")) == ("none", "mig", None)


@pytest.mark.parametrize(
    ("whole", "quarter"),
    [("80Gi", "20Gi"), ("81559Mi", "20879104Ki"), ("81G", "20250M"), ("1.5Gi", "384Mi")],
)
def test_a_part_has_exactly_its_eighths_in_whatever_unit(whole, quarter):
    part = lease()
    part["spec"]["devices"] = [{**DEVICES[0], "share": "1/4", "slots": [0, 1]}]
    host = host_slice()
    host["spec"]["devices"][2]["capacity"] = {"memory": {"value": whole}}
    (device,) = leasenodes.resource_slice(part, [host], NODE)["spec"]["devices"]
    assert device["capacity"]["memory"]["value"] == quarter
