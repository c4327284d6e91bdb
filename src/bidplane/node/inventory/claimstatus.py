"""
What a node says in a ResourceClaim of the devices it prepared, where DRA has a driver say it.

The exchange reads it: who cannot use what it leased pays nothing for it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import structlog

from bidplane.api.kinds import RESOURCE_CLAIM
from bidplane.api.lease import DEVICE_READY
from bidplane.core.parts import Key
from bidplane.errors import ApiError, NotFound
from bidplane.kube.client import Client, Object
from bidplane.machinery.clock import rfc3339
from bidplane.node.inventory.instances import Made

log = structlog.get_logger(__name__)


def allocated(claim: Object) -> list[Key]:
    """The devices of a claim."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    results = (allocation.get("devices") or {}).get("results") or ()
    return [(result["driver"], result["pool"], result["device"]) for result in results]


async def tell(
    client: Client,
    claim: Object,
    made: Mapping[Key, Made],
    *,
    failed: Collection[Key] = (),
    problem: str = "",
    now: float,
) -> None:
    """
    Which instances were made for a claim, or why not. It is for others to read: a node that may
    not write it goes on.
    """
    mine = {
        **{key: _entry(key, "InstanceMade", "", one, now) for key, one in made.items()},
        **{key: _entry(key, "InstanceNotMade", problem, None, now) for key in failed},
    }
    mine = {key: entry for key, entry in mine.items() if key in allocated(claim)}
    known = {_key(one): one for one in (claim.get("status") or {}).get("devices") or ()}
    if all(_same(known.get(key), entry) for key, entry in mine.items()):
        return
    metadata = claim["metadata"]
    patch = {
        "metadata": {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]},
        "status": {"devices": [*({**known, **mine}).values()]},
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
        log.warning("may not tell what was prepared", claim=metadata["name"], error=str(error))


def _key(entry: Object) -> Key:
    return entry["driver"], entry["pool"], entry["device"]


def _entry(key: Key, reason: str, message: str, made: Made | None, now: float) -> Object:
    driver, pool, device = key
    condition: dict[str, Any] = {
        "type": DEVICE_READY,
        "status": "True" if made is not None else "False",
        "reason": reason,
        "message": message,
        "lastTransitionTime": rfc3339(now),
    }
    entry: dict[str, Any] = {
        "driver": driver,
        "pool": pool,
        "device": device,
        "conditions": [condition],
    }
    if made is not None:
        entry["data"] = {"uuid": made.uuid, "gpuInstance": made.number}
    return entry


def _same(known: Object | None, entry: Object) -> bool:
    """But for the time."""
    if known is None or known.get("data") != entry.get("data"):
        return False
    old, new = ((one.get("conditions") or [{}])[0] for one in (known, entry))
    return all(old.get(field) == new[field] for field in ("status", "reason", "message"))
