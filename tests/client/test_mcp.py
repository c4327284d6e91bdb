"""`bidplane mcp` with the SDK's own client, over both transports."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult, TextContent

from bidplane.api.kinds import JOB
from bidplane.client import AsyncClient, config

from .conftest import Place

pytestmark = pytest.mark.slow

TOOLS = {"prices", "quote", "wallet", "bid", "run", "why_pending", "leases", "release"}
LIMITS = ("--max-price", "5", "--max-spend-per-call", "3", "--max-spend-per-hour", "4")


@contextlib.asynccontextmanager
async def stdio(place: Place, kubeconfig: Path, *limits: str) -> AsyncIterator[Client]:
    command, *arguments = place.command("mcp", "--kubeconfig", str(kubeconfig), *limits)
    server = StdioServerParameters(command=command, args=arguments, env=place.environment)
    async with Client(stdio_client(server)) as client:
        yield client


@contextlib.asynccontextmanager
async def http(place: Place, kubeconfig: Path, *limits: str) -> AsyncIterator[Client]:
    async with http_server(place, kubeconfig, *limits) as port:
        headers = {"Authorization": f"Bearer {config.read(kubeconfig).token}"}
        async with httpx2.AsyncClient(headers=headers, timeout=60) as carrier:
            transport = streamable_http_client(f"http://127.0.0.1:{port}/mcp", http_client=carrier)
            async with Client(transport) as client:
                yield client


@contextlib.asynccontextmanager
async def http_server(place: Place, kubeconfig: Path, *limits: str) -> AsyncIterator[int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(  # noqa: ASYNC220
        place.command(
            "mcp", "--transport", "http", "--port", str(port),
            "--kubeconfig", str(kubeconfig), *limits,
        ),
        env=place.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert f"serving MCP at http://127.0.0.1:{port}/mcp" in process.stdout.readline()
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            assert process.poll() is None
            await asyncio.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.communicate(timeout=20)


def text_of(answer: CallToolResult) -> str:
    """The text of a tool's answer, which is all of it."""
    (part,) = answer.content
    assert isinstance(part, TextContent)
    return part.text


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    answer = await client.call_tool(tool, arguments)
    assert not answer.is_error, answer.content
    result: dict[str, Any] = json.loads(text_of(answer))
    return result


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    answer = await client.call_tool(tool, arguments)
    assert answer.is_error, answer.content
    return text_of(answer)


@pytest.mark.parametrize("transport", [stdio, http])
def test_a_model_buys_runs_and_gives_back(place: Place, transport: Any) -> None:
    kubeconfig = place.agent()

    async def work() -> None:
        async with transport(place, kubeconfig, *LIMITS) as client:
            assert {tool.name for tool in (await client.list_tools()).tools} == TOOLS
            (pool,) = (await call(client, "prices"))["pools"]
            assert pool["pool"] == "h100"
            (quote,) = (await call(client, "quote", gpus=2))["quotes"]
            assert quote["gpus"] == 2
            assert (await call(client, "wallet"))["balance"] == "100.00"

            won = await call(client, "bid", gpus=1, max_price="1.00", minutes=60)
            assert won["environment"]["CUDA_VISIBLE_DEVICES"].startswith("GPU-box-")
            (lease,) = (await call(client, "leases"))["leases"]
            assert (lease["name"], lease["phase"]) == (won["lease"], "Active")
            assert await call(client, "release", name=won["lease"]) == {"released": won["lease"]}
            while (await call(client, "leases"))["leases"]:
                await asyncio.sleep(0.1)

            started = await call(
                client, "run", command=["train"], gpus=1, max_price="0.01", minutes=10
            )
            while True:
                pods = (await call(client, "why_pending", name=started["job"]))["pods"]
                if pods and pods[0].get("reason") == "BelowReserve":
                    break
                await asyncio.sleep(0.1)
            await call(client, "release", name=started["job"])

            assert "above the limit of 5.00" in await refused(
                client, "bid", gpus=1, max_price="6", minutes=1
            )
            assert "for one call" in await refused(
                client, "run", command=["x"], gpus=4, max_price="1", minutes=60
            )
            long = await call(client, "run", command=["x"], gpus=2, max_price="1", minutes=60)
            assert "for an hour" in await refused(
                client, "run", command=["x"], gpus=3, max_price="1", minutes=60
            )
            await call(client, "release", name=long["job"])
            assert "no pod" in await refused(client, "why_pending", name="nobody")
            assert "not a price" in await refused(client, "bid", gpus=1, max_price="much")

    asyncio.run(asyncio.wait_for(work(), 120))


def test_http_asks_for_the_agents_token_and_a_local_name(place: Place) -> None:
    kubeconfig, other = place.agent(), place.agent()
    token, stranger = config.read(kubeconfig).token, config.read(other).token
    ask = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "run", "arguments": {"command": ["x"], "max_price": "1"}},
    }
    accept = {"Accept": "application/json, text/event-stream"}

    async def work() -> None:
        async with http_server(place, kubeconfig) as port, httpx2.AsyncClient() as client:

            async def post(**headers: str) -> httpx2.Response:
                url = f"http://127.0.0.1:{port}/mcp"
                return await client.post(url, json=ask, headers={**accept, **headers})

            for headers in (
                {},
                {"Authorization": f"Bearer {token}x"},
                {"Authorization": f"Bearer {stranger}"},
                {"Authorization": f"Basic {token}"},
                {"Authorization": token},
            ):
                answer = await post(**headers)
                assert answer.status_code == 401, headers
                assert answer.headers["www-authenticate"].startswith("Bearer ")
                assert "Authorization: Bearer TOKEN" in answer.json()["error_description"]
            ours = {"Authorization": f"Bearer {token}"}
            assert (await post(**ours, Host="evil.test")).status_code == 421
            assert (await post(**ours, Host=f"evil.test:{port}")).status_code == 421
            assert (await post(**ours, Origin="http://evil.test")).status_code == 403

    asyncio.run(asyncio.wait_for(work(), 60))

    async def jobs() -> int:
        async with AsyncClient(kubeconfig=kubeconfig) as client:
            return len((await client.kube.list(JOB, client.namespace)).items)

    assert asyncio.run(jobs()) == 0


def test_an_hours_limit_outlives_the_server(place: Place) -> None:
    kubeconfig = place.agent()

    async def work() -> None:
        async with stdio(place, kubeconfig, *LIMITS) as client:
            long = await call(client, "run", command=["x"], gpus=2, max_price="1", minutes=60)
        async with stdio(place, kubeconfig, *LIMITS) as client:
            three = {"command": ["x"], "gpus": 3, "max_price": "1", "minutes": 60}
            message = await refused(client, "run", **three)
            assert "2.00 of the 4.00 for an hour are paid or promised" in message
            await call(client, "release", name=long["job"])
            second = await call(client, "run", **three)
            await call(client, "release", name=second["job"])

    asyncio.run(asyncio.wait_for(work(), 120))


def test_calls_at_once_do_not_spend_one_allowance_twice(place: Place) -> None:
    kubeconfig = place.agent()

    async def work() -> None:
        async with stdio(place, kubeconfig, *LIMITS) as client:
            ask = {"gpus": 1, "max_price": "0.01", "wait_seconds": 3}
            cheap = [client.call_tool("bid", {**ask, "minutes": 60}) for _ in range(2)]
            dear = client.call_tool("bid", {"gpus": 3, "max_price": "1", "minutes": 60})
            both = [*cheap, dear, client.call_tool("bid", {**ask, "max_price": "3"})]
            messages = [text_of(answer) for answer in await asyncio.gather(*both)]
            assert sum("for an hour" in message for message in messages) == 1, messages

    asyncio.run(asyncio.wait_for(work(), 120))


def test_what_is_held_ends_with_the_server(place: Place) -> None:
    import bidplane

    kubeconfig = place.agent()

    async def work() -> None:
        async with stdio(place, kubeconfig) as client:
            await call(client, "bid", gpus=1, max_price="1.00")

    asyncio.run(asyncio.wait_for(work(), 60))
    with bidplane.Client(kubeconfig=kubeconfig) as client:
        for _ in range(600):
            if not client.leases():
                return
            asyncio.run(asyncio.sleep(0.1))
    raise AssertionError("still held")


def test_bad_limits_are_refused(place: Place) -> None:
    output = place.bidplane("mcp", "--max-spend-per-hour", "lots", code=2)
    assert "--max-spend-per-hour: 'lots' is not an amount" in output
