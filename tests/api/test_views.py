"""A view names the fields of an object's JSON, and can stand in for it."""

from bidplane.api.views import KubeObject, Node, Pod, ResourceClaim, ResourceSlice

POD = {
    "kind": "Pod",
    "metadata": {
        "name": "train",
        "namespace": "default",
        "uid": "u1",
        "resourceVersion": "7",
        "deletionTimestamp": "2026-01-01T00:00:30Z",
        "deletionGracePeriodSeconds": 20,
        "ownerReferences": [{"kind": "Job", "name": "job", "controller": True}],
    },
    "spec": {"nodeName": "lease-1", "resourceClaims": [{"name": "gpus"}]},
    "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
}


def test_a_view_is_the_json_it_wraps():
    pod = Pod(POD)
    assert pod == POD
    assert pod == POD
    assert pod == Pod(dict(POD))
    assert pod != {**POD, "spec": {}}
    assert {**pod, "spec": {}} == {**POD, "spec": {}}
    assert pod.get("none") is None
    assert len(pod) == len(POD)
    assert pod.json is POD
    assert Pod(KubeObject(POD)).json is POD, "a view of a view is one of its JSON"
    assert repr(pod) == "<Pod default/train>"
    assert repr(Node({"metadata": {"name": "n1"}})) == "<Node n1>"


def test_a_pods_fields():
    pod = Pod(POD)
    assert (pod.name, pod.namespace, pod.uid, pod.resource_version) == (
        "train",
        "default",
        "u1",
        "7",
    )
    assert (pod.node_name, pod.phase, pod.grace_seconds) == ("lease-1", "Running", 30)
    assert (pod.is_deleted, pod.deletion_grace_seconds) == (True, 20)
    assert pod.controller["name"] == "job"
    assert pod.is_true("Ready")
    assert pod.condition("PodScheduled") is None
    assert pod.claim_references == [{"name": "gpus"}]
    assert not pod.has_ended


def test_what_an_object_lacks_is_empty():
    pod = Pod({"metadata": {"name": "a"}})
    assert (pod.namespace, pod.uid, pod.node_name, pod.phase) == ("", "", "", "")
    assert (dict(pod.labels), dict(pod.annotations), pod.finalizers) == ({}, {}, ())
    assert (pod.creation_timestamp, pod.deletion_timestamp) == ("", "")
    assert not pod.conditions
    assert not pod.claim_references
    assert pod.controller is None
    assert not Node({"metadata": {"name": "n"}, "spec": {}}).taints


def test_slices_and_claims():
    slice_ = ResourceSlice(
        {"metadata": {"name": "s"}, "spec": {"driver": "d", "nodeName": "n", "devices": [{}]}}
    )
    assert (slice_.driver, slice_.node_name, len(slice_.devices)) == ("d", "n", 1)
    result = {"driver": "d", "pool": "n", "device": "gpu-0"}
    status = {"allocation": {"devices": {"results": [result]}}}
    claim = ResourceClaim({"metadata": {"name": "c"}, "status": status})
    assert claim.results == [result]
    assert ResourceClaim({"metadata": {"name": "c"}}).allocation is None
