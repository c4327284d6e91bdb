"""Bids and leases that tests write as short JSON, completed and read as `core` gets them."""

from bidplane.api.reading import Invalid, read_bid, read_lease

REASONS = {"Waiting": "Outbid", "Won": "Won", "Ended": "Released", "Refused": "BadBid"}


def as_bid(obj):
    metadata = {"name": "bid", "namespace": "default", **obj["metadata"]}
    spec = {"gpus": 1, **obj.get("spec", {})}
    bid = read_bid({**obj, "metadata": metadata, "spec": spec})
    assert not isinstance(bid, Invalid), bid
    assert bid.status is not None or not obj.get("status"), "its status cannot be read"
    return bid


def as_lease(obj):
    device = {"node": "n", "driver": "gpu.bidplane.dev", "pool": "n"}
    spec = {"agent": "a", "pool": "h100", "node": "n", "devices": [], "maxPrice": "1.00"}
    spec |= obj.get("spec", {})
    spec["bid"] = {"namespace": "agent-a", "name": "bid", "uid": "h1", **spec.get("bid", {})}
    spec["devices"] = [{**device, **one} for one in spec["devices"]]
    lease = read_lease({**obj, "spec": spec})
    assert not isinstance(lease, Invalid), lease
    assert lease.status is not None or not obj.get("status"), "its status cannot be read"
    return lease
