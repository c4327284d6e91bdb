"""`bidplane mcp`: the market as tools for a model."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from bidplane.api.money import parse_credits, parse_price
from bidplane.cli.common import console
from bidplane.errors import UserError


def mcp(
    *,
    transport: Literal["stdio", "http"] = "stdio",
    port: int = 8765,
    max_price: str = "",
    max_spend_per_call: str = "",
    max_spend_per_hour: str = "",
    kubeconfig: Annotated[
        Path | None,
        Parameter(help="The agent's kubeconfig; else $BIDPLANE_KUBECONFIG or $KUBECONFIG."),
    ] = None,
) -> None:
    """
    Serve the tools prices, quote, wallet, bid, run, why_pending, leases and release.

    Speaks the Model Context Protocol, with the agent's own credential. Held leases end with this
    process; Jobs continue.

    For example:
        bidplane mcp --kubeconfig mine.kubeconfig --max-spend-per-hour 10
        bidplane mcp --transport http --port 8765 --max-price 4 --max-spend-per-call 5

    Args:
        transport: stdio for a client that starts this command; http at /mcp on 127.0.0.1, for
            clients that send the agent's token (`Authorization: Bearer TOKEN`).
        port: The port for http.
        max_price: The most a call may offer, credits per GPU-hour.
        max_spend_per_call: The most one call may cost, credits.
        max_spend_per_hour: The most that may be paid and promised within an hour, credits.
    """
    if importlib.util.find_spec("mcp") is None:
        raise UserError("`bidplane mcp` needs the extra: pip install 'bidplane[mcp]'")
    # The protocol's SDK takes most of a second to load, so it is imported only here.
    from bidplane.client import AsyncClient
    from bidplane.machinery.clock import SystemClock
    from bidplane.mcp import http
    from bidplane.mcp.limits import SpendLimits
    from bidplane.mcp.server import server

    limits = SpendLimits(
        per_call=_amount("--max-spend-per-call", max_spend_per_call),
        per_hour=_amount("--max-spend-per-hour", max_spend_per_hour),
        price=_amount("--max-price", max_price, price=True),
    )

    async def work() -> None:
        async with AsyncClient(kubeconfig=kubeconfig) as client:
            mcp_server = server(client, limits, clock=SystemClock())
            if transport == "stdio":
                await mcp_server.run_stdio_async()
            else:
                console.print(
                    f"serving MCP at http://127.0.0.1:{port}/mcp as agent {client.config.agent};"
                    " requests need its token, see --help",
                    soft_wrap=True,
                )
                await http.serve(mcp_server, token=client.config.token, port=port)

    asyncio.run(work())


def _amount(option: str, text: str, *, price: bool = False) -> int | None:
    if not text:
        return None
    try:
        return parse_price(text) if price else parse_credits(text)
    except ValueError as error:
        raise UserError(f"{option}: {error}") from error
