"""
The status of prepared devices in a ResourceClaim, as DRA has a driver write it.

The exchange reads it: an agent that cannot use its leased device pays nothing for it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import structlog

from bidplane.api.kinds import RESOURCE_CLAIM
from bidplane.api.lease import DEVICE_READY
from bidplane.api.times import rfc3339
from bidplane.core.devices.migdevices import Key
from bidplane.errors import ApiError, NotFound
from bidplane.kube.client import KubeClient, Object
from bidplane.node.inventory.instances import InstanceIdentity

log = structlog.get_logger(__name__)


def allocated(claim: Object) -> list[Key]:
    """The keys of the devices allocated to a claim."""
    return [(result["driver"], result["pool"], result["device"]) for result in results(claim)]


def results(claim: Object) -> list[Object]:
    """The allocation results of a claim, one per device."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return list((allocation.get("devices") or {}).get("results") or ())


async def tell(
    client: KubeClient,
    claim: Object,
    instances: Mapping[Key, InstanceIdentity],
    *,
    failed: Collection[Key] = (),
    problem: str = "",
    now: float,
) -> None:
    """
    Write which instances were made for a claim, or why they were not. A node without the right to
    write it logs that and continues.
    """
    entries = {
        **{
            key: _entry(key, "InstanceMade", "", instance, now)
            for key, instance in instances.items()
        },
        **{key: _entry(key, "InstanceNotMade", problem, None, now) for key in failed},
    }
    entries = {key: entry for key, entry in entries.items() if key in allocated(claim)}
    current = {_key(device): device for device in (claim.get("status") or {}).get("devices") or ()}
    if all(_is_same(current.get(key), entry) for key, entry in entries.items()):
        return
    metadata = claim["metadata"]
    patch = {
        "metadata": {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]},
        "status": {"devices": [*({**current, **entries}).values()]},
    }
    try:
        await client.patch(
            RESOURCE_CLAIM, metadata["name"], patch, metadata["namespace"], subresource="status"
        )
    except NotFound:
        return
    except ApiError as error:
        if error.code != 403:
            raise
        log.warning(
            "not allowed to write the claim's device status",
            claim=metadata["name"],
            error=str(error),
        )


def _key(entry: Object) -> Key:
    """The device's key: driver, pool, name."""
    return entry["driver"], entry["pool"], entry["device"]


def _entry(
    key: Key, reason: str, message: str, instance: InstanceIdentity | None, now: float
) -> Object:
    """The status of one prepared, or failed, device."""
    driver, pool, device = key
    condition = {
        "type": DEVICE_READY,
        "status": "True" if instance is not None else "False",
        "reason": reason,
        "message": message,
        "lastTransitionTime": rfc3339(now),
    }
    entry: dict[str, object] = {
        "driver": driver,
        "pool": pool,
        "device": device,
        "conditions": [condition],
    }
    if instance is not None:
        entry["data"] = {"uuid": instance.uuid, "gpuInstance": instance.number}
    return entry


def _is_same(current: Object | None, entry: Object) -> bool:
    """Return True if the two device statuses differ at most in their times."""
    if current is None or current.get("data") != entry.get("data"):
        return False
    old, new = ((status.get("conditions") or [{}])[0] for status in (current, entry))
    return all(old.get(field) == new[field] for field in ("status", "reason", "message"))
