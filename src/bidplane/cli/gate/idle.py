"""`bidplane idle`: devices that are held and do nothing."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from bidplane.api.gate.action import Action
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
from bidplane.cli.gate.flying import uses_of
from bidplane.core.gate.fleet import FleetEndpoint, FleetLease, FleetState
from bidplane.core.minds import rules
from bidplane.core.minds.idleness import (
    idle_evidence,
    service_of,
    waste_cost,
    waste_seconds,
)
from bidplane.core.minds.observation import Observation
from bidplane.core.minds.recurrence import Likelihood
from bidplane.gate.observing import read_fleet
from bidplane.machinery.clock import SystemClock


class IdleLease(msgspec.Struct, frozen=True, kw_only=True):
    """One idle lease, as the command shows it."""

    lease: str
    agent: str
    node: str
    devices: int
    since: str
    cost: str  # credits since then
    evidence: tuple[str, ...]
    pilot: str  # what the rules would do about it now


def idle(*, json: Json = False, data: Data = None) -> None:
    """
    List what is held and does nothing: since when, by whom, its cost, and why it counts as idle.

    The last column is what the pilot's rules would propose now.

    For example:
        bidplane idle
        bidplane idle --json
    """
    fleet, now = with_host(data, read_fleet), SystemClock().now()
    likely = uses_of(installation(data)).load().likely(fleet.endpoints, now)
    leases = idle_leases(fleet, now, likely)
    if json:
        print_json(leases)
        return
    if not leases:
        console.print("no device is held and idle")
        return
    rows = [
        [x.lease, x.agent, x.node, str(x.devices), x.since, x.cost, "; ".join(x.evidence), x.pilot]
        for x in leases
    ]
    columns = ["lease", "agent", "node", "devices", "since", "cost", "why", "the pilot would"]
    print_table(columns, rows, right="devices cost")
    total = sum(x.devices for x in leases)
    console.print(f"{total} of {fleet.leased} leased devices are idle")


def idle_leases(
    fleet: FleetState, now: float, likely: Mapping[str, Likelihood] | None = None
) -> list[IdleLease]:
    """Return the idle leases, the most expensive first. `likely`: the use of Endpoints, by uid."""
    intended = rules.decide(Observation(at=now, fleet=fleet, likely=likely or {}))
    by_uid = {x.action.uid: x.action for x in intended if x.action.uid}
    wasting: list[tuple[FleetLease, FleetEndpoint | None]] = []
    for lease in fleet.leases:
        service = service_of(lease, fleet)
        if waste_seconds(lease, now, service) > 0:
            wasting.append((lease, service))
    wasting.sort(key=lambda pair: (-waste_cost(pair[0], now, pair[1]), pair[0].namespace))
    return [
        _row(lease, service, by_uid.get(service.uid if service is not None else lease.uid), now)
        for lease, service in wasting
    ]


def _row(
    lease: FleetLease, service: FleetEndpoint | None, action: Action | None, now: float
) -> IdleLease:
    return IdleLease(
        lease=lease.name,
        agent=lease.agent,
        node=lease.node,
        devices=lease.devices,
        since=rfc3339(now - waste_seconds(lease, now, service)),
        cost=format_credits(waste_cost(lease, now, service)),
        evidence=idle_evidence(lease, now, service)[:-1],
        pilot=f"propose {action.kind}" if action is not None else "wait",
    )
