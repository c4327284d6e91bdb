"""`bidplane top`: all devices and who holds them, live."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bidplane.api.http.exchange import PoolPrice, Prices
from bidplane.api.kinds import GPU_LEASE, NODE, POD, PROPOSAL, RESOURCE_CLAIM, RESOURCE_SLICE
from bidplane.cli.common import Data, ask, installation, not_running
from bidplane.cli.devices.toprows import DeviceRow, FleetReadings, pilot_line, rows
from bidplane.errors import ApiError, Unavailable, UserError
from bidplane.kube.client import KubeClient, Object
from bidplane.machinery.clock import SystemClock
from bidplane.runtime.installation import Installation
from bidplane.telemetry.model import Counters
from bidplane.telemetry.pages import NodePages, url_of
from bidplane.telemetry.prometheus import PrometheusReader
from bidplane.wiring.hostclient import host_client

_GIB = 1 << 30
_WIDE, _WIDEST = 100, 120  # columns from which more is shown
_PLAIN_WIDTH = 160  # of output to a pipe
_BAR = 5
_LEAST_SECONDS = 0.2


def top(
    *,
    node: Annotated[str, Parameter(help="Only this node.")] = "",
    every: Annotated[float, Parameter(help="Seconds between two updates.")] = 1.0,
    once: Annotated[bool, Parameter(negative="", help="Print once, and end.")] = False,
    json: Annotated[bool, Parameter(negative="", help="Print once, as JSON.")] = False,
    prometheus: Annotated[
        str, Parameter(help="Read counters from this Prometheus, not from the nodes.")
    ] = "",
    data: Data = None,
) -> None:
    """
    Show every GPU: its load, and who holds it. Ctrl-C ends it.

    With output to a pipe, one plain table is printed.

    For example:
        bidplane top
        bidplane top --node h100-a --every 5
        bidplane top --json | jq '.[] | select(.agent == "")'
        bidplane top --prometheus http://prometheus.monitoring:9090
    """
    if not every >= _LEAST_SECONDS:
        raise UserError(f"--every must be at least {_LEAST_SECONDS} seconds, not {every}")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_top(data, node, every, prometheus, once=once, json=json))


async def _top(
    data: Path | None, node: str, every: float, prometheus: str, *, once: bool, json: bool
) -> None:
    # COLUMNS in the environment is the width at the start; the terminal may have been resized.
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
    console = Console(highlight=False, _environ=environment)
    source = _Source(data, prometheus)
    try:
        picture = await source.read(node)
        if json:
            sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(picture.rows)) + b"\n")
        elif not console.is_terminal:
            plain = Console(highlight=False, width=_PLAIN_WIDTH, no_color=True)
            plain.print(_table(picture, _PLAIN_WIDTH, plain=True))
        elif once:
            console.print(_draw(picture, console, height=None))
        else:
            await _live(console, source, picture, node, every)
    finally:
        await source.close()


async def _live(
    console: Console, source: _Source, picture: Picture, node: str, every: float
) -> None:
    """Update the picture until interrupted."""
    drawn = _draw(picture, console, height=console.height)
    with Live(drawn, console=console, screen=True, auto_refresh=False) as live:
        live.refresh()
        while True:
            await asyncio.sleep(every)
            try:
                picture = await source.read(node)
            except (ApiError, UserError) as error:
                picture = msgspec.structs.replace(picture, trouble=str(error))
            # Drawn anew for the terminal's present size.
            live.update(_draw(picture, console, height=console.height), refresh=True)


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """The content of one screen."""

    rows: list[DeviceRow]
    pools: Sequence[PoolPrice] = ()
    silent: int = 0  # nodes' servers that did not answer
    pilot: str = ""  # what waits for a person, and what the pilot did last
    trouble: str = ""


class _Source:
    """Reads all that a picture shows."""

    def __init__(self, data: Path | None, prometheus: str) -> None:
        self._data = data
        target: Installation = installation(data)
        clock = SystemClock()
        self._host = host_client(target, user="owner", clock=clock)
        self._pages = NodePages(
            token=lambda: target.owner_token(user="owner", now=clock.now()), ca_file=target.ca_file
        )
        self._prometheus = PrometheusReader(prometheus) if prometheus else None

    async def close(self) -> None:
        await self._host.close()
        await self._pages.close()
        if self._prometheus is not None:
            await self._prometheus.close()

    async def read(self, node: str) -> Picture:
        """Read everything and build the picture."""
        try:
            nodes, slices, leases, claims, pods = await asyncio.gather(
                *(_all(self._host, kind) for kind in _KINDS)
            )
        except Unavailable as error:
            raise not_running(self._data) from error
        device_rows = rows(
            FleetReadings(
                nodes=nodes,
                slices=slices,
                leases=leases,
                claims=claims,
                pods=pods,
                counters=await self._counters(nodes),
            )
        )
        if node:
            device_rows = [row for row in device_rows if row.node == node]
            if not device_rows:
                names = (
                    ", ".join(sorted(node_object["metadata"]["name"] for node_object in nodes))
                    or "none"
                )
                raise UserError(f"no node {node!r} with GPUs; there are: {names}")
        proposals = (await self._host.list(PROPOSAL)).items
        return Picture(
            rows=device_rows,
            pools=await self._pools(),
            silent=len(self._pages.silent),
            pilot=pilot_line(proposals),
        )

    async def _counters(self, nodes: Sequence[Object]) -> list[Counters]:
        if self._prometheus is not None:
            return await self._prometheus.read()
        return await self._pages.read({url for node in nodes if (url := url_of(node))})

    async def _pools(self) -> Sequence[PoolPrice]:
        """The prices of the pools; none while the exchange restarts."""
        try:
            current = await asyncio.to_thread(ask, self._data, "GET", "/exchange/v1/prices", Prices)
        except (ApiError, UserError):
            return ()  # the exchange restarts; show the devices without prices
        return current.pools


_KINDS = (NODE, RESOURCE_SLICE, GPU_LEASE, RESOURCE_CLAIM, POD)


async def _all(host: KubeClient, kind: Any) -> Sequence[Object]:
    return (await host.list(kind)).items


# Drawing.


def _draw(picture: Picture, console: Console, *, height: int | None) -> RenderableType:
    """The picture for a terminal, cut to its height."""
    width = console.width
    parts: list[RenderableType] = [_line(_summary(picture.rows)), _line(_pools(picture.pools))]
    if picture.pilot:
        parts.append(_line(picture.pilot, "cyan"))
    if picture.trouble:
        parts.append(_line(picture.trouble, "bold red"))
    elif picture.silent:
        parts.append(_line(f"{picture.silent} nodes' servers do not answer", "yellow"))
    visible = picture.rows
    if height is not None and len(visible) + len(parts) + 1 > height:
        visible = visible[: max(1, height - len(parts) - 2)]
    parts.append(_table(msgspec.structs.replace(picture, rows=visible), width))
    if len(visible) < len(picture.rows):
        hidden = len(picture.rows) - len(visible)
        parts.append(_line(f"… and {hidden} more: a taller terminal, or --node NAME", "dim"))
    return Group(*parts)


def _line(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _summary(device_rows: Sequence[DeviceRow]) -> str:
    # A device that is shared has a row for each lease.
    devices = {(row.node, row.device): row for row in device_rows}
    leased = sum(bool(row.lease) for row in devices.values())
    loads = [d.utilisation_percent for d in devices.values() if d.utilisation_percent is not None]
    parts = [
        f"{len({row.node for row in device_rows})} nodes",
        f"{len(devices)} GPUs",
        f"{leased} leased",
        f"{len(devices) - leased} free",
    ]
    if loads:
        parts.append(f"{sum(loads) / len(loads):.0f}% busy")
    watts = [device.power_watts for device in devices.values() if device.power_watts is not None]
    if watts:
        parts.append(f"{sum(watts) / 1000:.1f} kW")
    return "  ".join(parts)


def _pools(pools: Sequence[PoolPrice]) -> str:
    return "  ".join(f"{p.pool} {p.price} ({p.leased}/{p.devices})" for p in pools)


def _table(picture: Picture, width: int, *, plain: bool = False) -> Table:
    """
    The devices as a table. With `plain` every line is complete by itself, for `grep` and `awk`.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    columns = _columns(width)
    for name, justify, least, most in columns:
        table.add_column(
            name,
            justify=justify,  # type: ignore[arg-type]
            no_wrap=True,
            overflow="ellipsis",
            min_width=least,
            max_width=most,
        )
    last = ""
    for row in picture.rows:
        cells = _cells(row, repeat=plain or row.node != last)
        table.add_row(*(cells[name] for name, *_ in columns))
        last = row.node
    return table


def _columns(width: int) -> list[tuple[str, str, int | None, int | None]]:
    """The columns that fit the width: name, alignment, least and most width."""
    columns: list[tuple[str, str, int | None, int | None]] = [
        ("NODE", "left", 4, 16 if width < _WIDE else None),
        ("GPU", "left", 3, 12),
        ("UTIL", "right", 10, 10),
        ("MEM GIB", "right", 7, 9),
        ("LINK", "left", 4, 6),
        ("AGENT", "left", 5, 12 if width < _WIDE else None),
        ("POD", "left", 5, 16 if width < _WIDE else None),
        ("PRICE", "right", 5, 8),
        ("HEALTH", "left", 6, 9),
    ]
    if width >= _WIDE:
        columns.insert(6, ("LEASE", "left", 5, None))
        columns.insert(5, ("POWER", "right", 6, 6))
    if width >= _WIDEST:
        columns.insert(1, ("PRODUCT", "left", 7, 16))
        columns.insert(7, ("PCIE TX/RX", "right", 11, 13))
    return columns


def _cells(row: DeviceRow, *, repeat: bool) -> dict[str, Text]:
    """The row's cells by column; `repeat` shows the node's name again."""
    free = "" if row.lease else "dim"
    return {
        "NODE": Text(row.node if repeat else "", "bold"),
        "PRODUCT": Text(row.product),
        "GPU": Text(f"{row.device.removeprefix('gpu-')} {row.share}".strip(), free),
        "UTIL": Text("declared", "dim") if row.declared else _load(row.utilisation_percent),
        "MEM GIB": Text(_memory(row)),
        "POWER": Text("" if row.power_watts is None else f"{row.power_watts:.0f} W"),
        "PCIE TX/RX": Text(_traffic(row)),
        "LINK": Text(row.link, "yellow" if "/" in row.link else ""),
        "AGENT": Text(row.agent, "cyan" if row.phase != "Draining" else "yellow"),
        "LEASE": Text(row.lease),
        "POD": Text(row.pod.removeprefix("default/")),
        "PRICE": Text(row.price),
        "HEALTH": Text(row.health, "green" if row.health == "ok" else "bold red"),
    }


def _load(percent: float | None) -> Text:
    if percent is None:
        return Text("-", "dim")
    full = round(percent / 100 * _BAR)
    style = "green" if percent >= 50 else "yellow" if percent >= 5 else "dim"
    return Text("█" * full + "·" * (_BAR - full), style) + Text(f" {percent:3.0f}%")


def _memory(row: DeviceRow) -> str:
    if row.memory_used_bytes is None:
        return ""
    used = f"{row.memory_used_bytes / _GIB:.0f}"
    total = row.memory_total_bytes
    return used if total is None else f"{used}/{total / _GIB:.0f}"


def _traffic(row: DeviceRow) -> str:
    sent_rate, received_rate = row.pcie_tx_bytes_per_second, row.pcie_rx_bytes_per_second
    if sent_rate is None or received_rate is None:
        return ""
    return f"{sent_rate / 1e9:.1f}/{received_rate / 1e9:.1f} GB/s"
