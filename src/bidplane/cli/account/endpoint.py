"""`bidplane endpoint …`: services that sleep, for their installation's owner."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, TypeAlias

import msgspec
from cyclopts import App, Parameter

from bidplane.api import labels
from bidplane.api.agent import host_namespace
from bidplane.api.endpoint import EndpointPhase, EndpointStatus
from bidplane.api.idling.ladder import HoldingStatus, Rung
from bidplane.api.kinds import ENDPOINT
from bidplane.api.reading import Endpoint, Invalid, read_endpoint
from bidplane.api.times import rfc3339
from bidplane.cli.account.ladder import ladder_lines, ready_window
from bidplane.cli.common import Data, Json, console, print_json, print_table, with_host
from bidplane.core.hosting.translation import host_name
from bidplane.errors import NotFound, UserError
from bidplane.kube.client import KubeClient
from bidplane.machinery.clock import SystemClock

app = App(name="endpoint", help="Endpoints: services that sleep, and wake on a request.")

Name: TypeAlias = Annotated[str, Parameter(help="AGENT/NAME, or AGENT/NAMESPACE/NAME.")]


class EndpointSummary(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An Endpoint as these commands print it."""

    agent: str
    namespace: str
    name: str
    status: EndpointStatus


@app.command(name="list")
def list_(*, json: Json = False, data: Data = None) -> None:
    """
    List the Endpoints of all agents.

    For example:
        bidplane endpoint list
    """

    async def read(host: KubeClient) -> list[EndpointSummary]:
        listing = await host.list(ENDPOINT)
        endpoints = [read_endpoint(obj) for obj in listing.items]
        return [_summary(endpoint) for endpoint in endpoints if not isinstance(endpoint, Invalid)]

    summaries = with_host(data, read)
    if json:
        print_json(summaries)
        return
    rows = []
    for summary in summaries:
        status, demand = summary.status, summary.status.demand
        rows.append(
            [
                summary.agent,
                f"{summary.namespace}/{summary.name}",
                status.phase.value,
                status.ladder.rung.value if status.ladder is not None else "-",
                str(demand.holds if demand else 0),
                str(demand.in_flight if demand else 0),
                (demand.last_request if demand else "") or "-",
                status.host or status.reason,
            ]
        )
    columns = ["AGENT", "ENDPOINT", "PHASE", "RUNG", "HELD", "IN FLIGHT", "LAST REQUEST", "HOST"]
    print_table(columns, rows, right="HELD")


@app.command
def show(name: Name, /, *, json: Json = False, data: Data = None) -> None:
    """
    Show one Endpoint: its names, its pods, and its last cold start.

    For example:
        bidplane endpoint show trainer/web
    """
    endpoint = _read(name, data)
    summary = _summary(endpoint)
    if json:
        print_json(summary)
        return
    status = summary.status
    pods = ", ".join(f"{b.pod} {b.address}:{b.port}" for b in status.backends)
    target = endpoint.spec.target
    lines = {
        "phase": status.phase.value,
        "reason": " ".join(filter(None, (status.reason, status.message))),
        "hosts": ", ".join(status.hosts),
        "target": f"Deployment {target.deployment}, Service {target.service}",
        "pods": pods,
        "cold start": _cold_start(status),
        **dict(ladder_lines(endpoint)),
    }
    for label, text in lines.items():
        if text:
            console.print(f"{label:11} {text}", markup=False)


@app.command
def wake(name: Name, /, *, data: Data = None) -> None:
    """
    Wake a service, as a request would; it sleeps again after its window.

    For example:
        bidplane endpoint wake trainer/web
    """
    _ask_for("wake", name, data)
    console.print(f"{name} was asked to wake: see `bidplane endpoint why {name}`")


@app.command
def sleep(name: Name, /, *, data: Data = None) -> None:
    """
    Let a service sleep; not while requests wait or are in flight. A request wakes it again.

    For example:
        bidplane endpoint sleep trainer/web
    """
    _ask_for("sleep", name, data)
    console.print(f"{name} was asked to sleep: see `bidplane endpoint why {name}`")


@app.command
def scale(
    name: Name,
    replicas: Annotated[int, Parameter(help="Of the Deployment, while it is awake.")],
    /,
    *,
    data: Data = None,
) -> None:
    """
    Set the replicas that a service has from its next wake on. Fewer: not while requests wait.

    For example:
        bidplane endpoint scale trainer/web 2
    """
    _annotate(name, {labels.ENDPOINT_REPLICAS: str(replicas)}, data)
    console.print(f"{name} has {replicas} replicas from its next wake on")


@app.command
def retry(name: Name, /, *, data: Data = None) -> None:
    """
    Retry a rollout that failed: the Deployment's pods are made anew.

    For example:
        bidplane endpoint retry trainer/web
    """
    _annotate(name, {labels.ENDPOINT_RETRY: rfc3339(SystemClock().now())}, data)
    console.print(f"{name} was asked to start anew: see `bidplane endpoint why {name}`")


@app.command
def why(name: Name, /, *, data: Data = None) -> None:
    """
    Explain an Endpoint's state, and where the seconds of its last cold start went.

    For example:
        bidplane endpoint why trainer/web
    """
    for line in _explanation(_read(name, data)):
        console.print(line, markup=False)


def _explanation(endpoint: Endpoint) -> Iterator[str]:
    status = endpoint.status or EndpointStatus()
    demand, window = status.demand, ready_window(endpoint)
    reason = f" {status.reason}: {status.message}" if status.reason else ""
    since = f" since {demand.since}" if demand is not None and demand.since else ""
    cause = {
        "Request": "a request came",
        "Idle": f"nobody used it for {window} s",
        "Restart": "it did not wake from sleep, and starts anew",
        "LeaseLost": "somebody outbid the lease that it kept",
        "PodsLost": "it lost its pods while it slept",
        "SleepFailed": "its application did not fall asleep",
        "Asked": "a person asked",
        "Found": "it was found so when the activator started",
    }.get(demand.reason if demand is not None else "", "")
    match status.phase:
        case EndpointPhase.REFUSED:
            yield f"It is refused.{reason}"
        case EndpointPhase.ASLEEP:
            yield f"It is asleep{since}: {cause}. {_cost(status.holding)}"
        case EndpointPhase.STOPPING:
            yield f"It is stopping{since}: {cause}. Its pods have not begun to end."
        case EndpointPhase.WAKING:
            yield f"It is waking{since}: {cause}.{reason or ' Its pod is not ready.'}"
            holds = demand.holds if demand is not None else 0
            yield f"{holds} requests waited for it at the last report."
        case EndpointPhase.READY:
            rung = status.ladder.rung if status.ladder is not None else Rung.READY
            if rung is not Rung.READY:
                yield f"Its pods are ready; it is {rung.value} on its ladder."
            else:
                yield f"It is ready; awake{since}: {cause}."
            if demand is not None and demand.last_request:
                yield (
                    f"Its last request was at {demand.last_request}, {demand.in_flight} are in"
                    f" flight; it sleeps after {window} s without one."
                )
    if cold_start := _cold_start(status):
        yield f"Its last cold start took {cold_start}."
    yield "Its ladder:"
    for label, text in ladder_lines(endpoint):
        yield f"  {label:9} {text}"


def _cost(holding: HoldingStatus) -> str:
    """Return what a service without replicas holds and pays."""
    if holding.keeps_lease:
        return f"It holds its lease, {holding.paid_per_hour} an hour."
    if holding.leases:
        return (
            f"{', '.join(holding.leases)} ({holding.paid_per_hour} an hour) ends once its pods have"
            " ended and the memory of their GPUs is seen free."
        )
    return "It holds no GPU and costs nothing."


def _cold_start(status: EndpointStatus) -> str:
    start = status.cold_start
    if start is None:
        return ""
    parts = {
        "bid": start.bid,
        "bind": start.bind,
        "start": start.start,
        "load": start.load,
        "probe": start.probe,
    }
    split = ", ".join(f"{name} {milliseconds / 1000:.2f}" for name, milliseconds in parts.items())
    return f"{start.total / 1000:.2f} s ({split})"


def _summary(endpoint: Endpoint) -> EndpointSummary:
    """Return what `list` and `show` say of a service that sleeps: whose it is, and its status."""
    notes = endpoint.annotations
    return EndpointSummary(
        agent=endpoint.labels.get(labels.AGENT, ""),
        namespace=notes.get(labels.PLANE_NAMESPACE, endpoint.namespace),
        name=notes.get(labels.PLANE_NAME, endpoint.name),
        status=endpoint.status or EndpointStatus(),
    )


def _place(name: str) -> tuple[str, str]:
    """Return the namespace and name of an Endpoint on the host."""
    parts = name.split("/")
    if len(parts) not in (2, 3) or not all(parts):
        raise UserError(f"{name!r} names no Endpoint: write AGENT/NAME or AGENT/NAMESPACE/NAME")
    namespace = parts[1] if len(parts) == 3 else "default"
    return host_namespace(parts[0]), host_name(namespace, parts[-1])


def _read(name: str, data: Data) -> Endpoint:
    namespace, copy = _place(name)

    async def read(host: KubeClient) -> Endpoint:
        try:
            endpoint = read_endpoint(await host.get(ENDPOINT, copy, namespace))
        except NotFound:
            raise _missing(name) from None
        if isinstance(endpoint, Invalid):
            raise UserError(f"{name} cannot be read: {endpoint.problem}")
        return endpoint

    return with_host(data, read)


def _ask_for(verb: str, name: str, data: Data) -> None:
    _annotate(name, {labels.ENDPOINT_REQUEST: f"{verb} {rfc3339(SystemClock().now())}"}, data)


def _annotate(name: str, annotations: dict[str, str], data: Data) -> None:
    namespace, copy = _place(name)

    async def write(host: KubeClient) -> None:
        change = {"metadata": {"annotations": annotations}}
        try:
            await host.patch(ENDPOINT, copy, change, namespace)
        except NotFound:
            raise _missing(name) from None

    with_host(data, write)


def _missing(name: str) -> UserError:
    return UserError(f"there is no Endpoint {name}: see `bidplane endpoint list`")
