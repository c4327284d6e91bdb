"""`bidplane fleet list` names the devices of a node that nobody gets."""

from bidplane.cli.devices.fleet import _used
from bidplane.core.devices.foreignuse import ForeignUse


def test_tainted_devices_are_counted_by_their_taint():
    taint = {"key": "bidplane.dev/memory-in-use", "value": "40.0GiB", "effect": "NoSchedule"}
    devices = [{"name": "gpu-0", "taints": [taint]}, {"name": "gpu-1"}]
    pool = {"name": "box"}
    slices = [
        {"spec": {"driver": "d", "nodeName": node, "pool": pool, "devices": devices}}
        for node in ("box", "other")
    ]
    assert _used("box", slices, ForeignUse({}, {})) == "1 tainted bidplane.dev/memory-in-use"
    assert _used("none", slices, ForeignUse({}, {})) == ""
