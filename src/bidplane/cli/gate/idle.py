"""`bidplane idle`: devices that are held and do nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from bidplane.api.money import format_credits
from bidplane.api.times import rfc3339
from bidplane.cli.common import (
    Data,
    Json,
    console,
    installation,
    print_json,
    print_table,
    with_host,
)
from bidplane.cli.devices.loads import LeaseLoads, read_loads
from bidplane.cli.gate.flying import uses_of
from bidplane.core.gate.fleet import FleetLease, FleetState
from bidplane.core.minds import rules
from bidplane.core.minds.idleness import Idleness, idle_cost, idleness_of, service_of
from bidplane.core.minds.observation import Observation
from bidplane.core.minds.recurrence import Likelihood
from bidplane.gate.observing import read_fleet
from bidplane.kube.client import KubeClient
from bidplane.machinery.clock import SystemClock


class IdleLease(msgspec.Struct, frozen=True, kw_only=True):
    """One idle lease, as the command shows it."""

    lease: str
    agent: str
    node: str
    devices: int
    since: str
    cost: str  # credits since then; "" while it is in doubt
    state: Literal["Idle", "Unknown"]
    doubt: str  # why it is not known to be idle
    evidence: tuple[str, ...]  # each signal that was joined
    pilot: str  # what the rules would do about it now


def idle(*, json: Json = False, data: Data = None) -> None:
    """
    List what is held and does nothing: since when, by whom, its cost, and why it counts as idle.

    Signals are joined: requests, the application's own queue (`spec.idle`), GPU counters, and the
    owner's pods. Where requests or the queue are not known, the lease is listed as unknown. The
    last column is what the pilot's rules would propose now.

    For example:
        bidplane idle
        bidplane idle --json
    """

    async def read(host: KubeClient) -> tuple[FleetState, LeaseLoads]:
        return await read_fleet(host), await read_loads(host, installation(data))

    fleet, now = with_loads(*with_host(data, read)), SystemClock().now()
    likely = uses_of(installation(data)).load().likely(fleet.endpoints, now)
    leases = idle_leases(fleet, now, likely)
    if json:
        print_json(leases)
        return
    if not leases:
        console.print("no device is held and idle")
        return
    rows = [
        [
            x.lease,
            x.agent,
            x.node,
            str(x.devices),
            x.since,
            x.cost or x.state.lower(),
            "; ".join(x.evidence),
            x.pilot,
        ]
        for x in leases
    ]
    columns = ["lease", "agent", "node", "devices", "since", "cost", "why", "the pilot would"]
    print_table(columns, rows, right="devices cost")
    total = sum(x.devices for x in leases if x.state == "Idle")
    unknown = sum(x.devices for x in leases if x.state == "Unknown")
    doubt = f"; of {unknown} it is not known" if unknown else ""
    console.print(f"{total} of {fleet.leased} leased devices are idle{doubt}")


def with_loads(fleet: FleetState, loads: LeaseLoads) -> FleetState:
    """Return the fleet with the present load of each lease's GPUs, where it is measured."""
    leases = tuple(
        msgspec.structs.replace(lease, busy_percent=loads.get((lease.agent, lease.name)))
        for lease in fleet.leases
    )
    return msgspec.structs.replace(fleet, leases=leases)


def idle_leases(
    fleet: FleetState, now: float, likely: Mapping[str, Likelihood] | None = None
) -> list[IdleLease]:
    """
    Return the idle leases, the most expensive first, and then those in doubt. `likely`: the use of
    Endpoints, by uid.
    """
    intended = rules.decide(Observation(at=now, fleet=fleet, likely=likely or {}))
    by_uid = {x.action.uid: f"propose {x.action.kind}" for x in intended if x.action.uid}
    candidates: list[tuple[FleetLease, Idleness]] = []
    for lease in fleet.leases:
        idleness = idleness_of(lease, fleet, now)
        if idleness.seconds > 0:
            candidates.append((lease, idleness))
    candidates.sort(key=lambda pair: (bool(pair[1].doubt), -idle_cost(pair[0], pair[1].seconds)))
    rows: list[IdleLease] = []
    for lease, idleness in candidates:
        service = service_of(lease, fleet)
        uid = service.uid if service is not None else lease.uid
        rows.append(_row(lease, idleness, by_uid.get(uid, "wait"), now))
    return rows


def _row(lease: FleetLease, idleness: Idleness, pilot: str, now: float) -> IdleLease:
    cost = format_credits(idle_cost(lease, idleness.seconds)) if idleness.is_idle else ""
    return IdleLease(
        lease=lease.name,
        agent=lease.agent,
        node=lease.node,
        devices=lease.devices,
        since=rfc3339(now - idleness.seconds),
        cost=cost,
        state="Idle" if idleness.is_idle else "Unknown",
        doubt=idleness.doubt,
        evidence=idleness.signals,
        pilot=pilot,
    )
