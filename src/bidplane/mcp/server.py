"""
`bidplane mcp`: an agent's market as tools for a model.

Every tool acts with the agent's own credential and within the limits its owner set. GPUs from
`bid` are held by this process and end with it; `run` starts a Job in the agent's plane that
continues without it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from bidplane import __version__
from bidplane.api import labels
from bidplane.api.kinds import BID, JOB, POD, Object
from bidplane.api.money import format_credits, parse_credits, parse_price
from bidplane.api.objects import (
    annotations_of,
    is_true,
    labels_of,
    name_of,
    phase_of,
    spec_of,
)
from bidplane.api.times import rfc3339
from bidplane.client import AsyncClient, work
from bidplane.client.asking import price_text
from bidplane.client.leasing import AsyncLeasing, HeldLease, unique_name
from bidplane.errors import ApiError, BidplaneError, NotFound
from bidplane.machinery.clock import Clock
from bidplane.mcp.limits import SpendLimits, bound, paid_since, refusal

INSTRUCTIONS = """
You have a wallet and your own Kubernetes on a GPU fleet where GPU time is auctioned every
second. Prices are credits per GPU-hour; a winner pays the least it could have bid and still
won, so bid what the time is worth to you. Look at `prices` or `quote` first. `run` starts a
command as a Job; `bid` holds GPUs for a while; `why_pending` says what would make waiting work
start; `release` gives GPUs back.
""".strip()

LONGEST_MINUTES = 24 * 60


class Tools:
    """The tools, one method each; their docstrings are what the model reads."""

    def __init__(self, client: AsyncClient, limits: SpendLimits, *, clock: Clock) -> None:
        self._client = client
        self._limits = limits
        self._clock = clock
        # By bid, the most it can cost: of bids being made, which may not be in the plane yet. Those
        # in the plane carry it as an annotation, and outlive this process.
        self._requested: dict[str, int] = {}
        self._holdings: dict[str, tuple[HeldLease, asyncio.Task[None]]] = {}
        self._gate = asyncio.Lock()  # two calls at once must not spend one allowance twice

    async def prices(self) -> dict[str, object]:
        """
        The price of a GPU now in each pool: credits per GPU-hour, devices, how many are leased.
        """
        return _plain(await self._client.prices())

    async def quote(self, gpus: int = 1, pool: str = "") -> dict[str, object]:
        """
        The cost of that many GPUs for an hour, the cheapest pool first; you pay for `soldAs` GPUs.
        """
        with _as_tool_errors():
            quotes = await self._client.quote(gpus=gpus, pool=pool)
        return {"quotes": [_plain(quote) for quote in quotes]}

    async def wallet(self) -> dict[str, object]:
        """Your balance: what is held for running leases, and what is free to spend."""
        with _as_tool_errors():
            return _plain(await self._client.wallet())

    async def leases(self) -> dict[str, object]:
        """The GPUs you hold now, what each has cost so far, and when notice runs out."""
        with _as_tool_errors():
            leases = await self._client.leases()
        views = [_plain(lease) for lease in leases]
        for lease, view in zip(leases, views, strict=True):
            holding = self._holdings.get(lease.name)
            if holding is not None:
                view["environment"] = holding[0].env
        return {"leases": views}

    async def bid(
        self,
        gpus: int,
        max_price: str,
        minutes: int = 60,
        pool: str = "",
        link: str = "domain",
        wait_seconds: int = 60,
    ) -> dict[str, object]:
        """
        Bid for GPUs and hold what is won for at most `minutes`.

        Waits up to `wait_seconds` to win; if that fails, says why, and which price would have won.
        `link` is "domain" (one link domain), "nvlink", "x16" or "any" (scattered). Returns the
        lease, its devices, and the environment a command needs to use them.
        """
        async with self._gate:
            most = await self._check_limits(max_price, gpus, _seconds(minutes))
            name = unique_name("hold")
            self._requested[name] = most
        try:
            with _as_tool_errors():
                leasing = self._client.lease(
                    gpus=gpus,
                    max_price=max_price,
                    pool=pool,
                    link=link,  # type: ignore[arg-type]  # checked by the client
                    timeout=max(1, wait_seconds),
                    name=name,
                    annotations={labels.COSTS_AT_MOST: format_credits(most)},
                )
                lease = await leasing.__aenter__()
        finally:
            self._requested.pop(name, None)
        keeper = asyncio.create_task(self._hold(leasing, lease, _seconds(minutes)))
        self._holdings[lease.name] = lease, keeper
        return {
            "lease": lease.name,
            "price": lease.price,
            "devices": [_plain(device) for device in lease.devices],
            "environment": lease.env,
            "minutes": minutes,
        }

    async def run(
        self,
        command: list[str],
        max_price: str,
        gpus: int = 1,
        minutes: int = 60,
        image: str = work.IMAGE,
        pool: str = "",
        environment: dict[str, str] | None = None,
    ) -> dict[str, object]:
        """
        Run a command on GPUs as a Job in your plane, for at most `minutes`, waiting included.

        Returns at once; `why_pending` and `leases` show its progress. If it is outbid it bids
        again by itself.
        """
        name = unique_name("run")
        async with self._gate:
            most = await self._check_limits(max_price, gpus, _seconds(minutes))
            with _as_tool_errors():
                job = work.job(
                    name,
                    command,
                    gpus=gpus,
                    max_price=max_price,
                    seconds=_seconds(minutes),
                    image=image,
                    env=environment,
                    pool=pool,
                    notes={labels.COSTS_AT_MOST: format_credits(most)},
                )
                await self._client.kube.create(JOB, job, self._client.namespace)
        return {
            "job": name,
            "namespace": self._client.namespace,
            "costsAtMost": format_credits(most),
        }

    async def why_pending(self, name: str = "") -> dict[str, object]:
        """
        Explain why pods wait, what would win now, how long it may take, and what you can do.

        `name` is a pod's, or a Job's as `run` returned it; without one, all waiting pods are
        listed.
        """
        with _as_tool_errors():
            listing = await self._client.kube.list(POD, self._client.namespace)
        chosen = [pod for pod in listing.items if name in ("", *_names(pod))]
        if name and not chosen:
            try:
                await self._client.kube.get(JOB, name, self._client.namespace)
            except ApiError:
                message = f"there is no pod or Job called {name!r}"
                raise ToolError(message) from None
            return {"pods": [], "message": "the Job has no pod at the moment: try again later"}
        return {"pods": [_pod_view(pod) for pod in chosen if name or _is_waiting(pod)]}

    async def release(self, name: str) -> dict[str, object]:
        """Give back a lease (its name), or end a Job that `run` started (its name)."""
        holding = self._holdings.pop(name, None)
        if holding is not None:
            holding[1].cancel()
            await asyncio.gather(holding[1], return_exceptions=True)
            return {"released": name}
        with _as_tool_errors():
            try:
                await self._client.kube.delete(JOB, name, self._client.namespace)
            except NotFound:
                await self._client.release(name)
        return {"released": name}

    async def close(self) -> None:
        """Give all held leases back."""
        for name in list(self._holdings):
            with contextlib.suppress(ApiError, ToolError):
                await self.release(name)

    async def _check_limits(self, max_price: str, gpus: int, seconds: int) -> int:
        """
        Return the most that a call can cost; raises `ToolError` when that exceeds the limits.
        """
        with _as_tool_errors():
            price = parse_price(price_text(max_price))
            statement = await self._client.statement()
            promised = await self._promised()
        most = bound(price, max(1, gpus), seconds)
        reason = refusal(
            self._limits,
            price=price,
            most=most,
            paid=paid_since(statement.lines, rfc3339(self._clock.now() - 3600)),
            promised=promised,
        )
        if reason is not None:
            raise ToolError(f"refused: {reason}")
        return most

    async def _promised(self) -> dict[str, int]:
        """
        The most that each unfinished bid and Job of this server, or of an earlier one, can still
        cost, by name. Finished ones are in the statement.
        """
        unfinished = [
            *(await self._client.kube.list(BID, self._client.namespace)).items,
            *(
                job
                for job in (await self._client.kube.list(JOB, self._client.namespace)).items
                if not _has_ended(job)
            ),
        ]
        promised = dict(self._requested)
        for obj in unfinished:
            amount = annotations_of(obj).get(labels.COSTS_AT_MOST)
            if amount is not None:
                promised[name_of(obj)] = _amount(obj, amount)
        return promised

    async def _hold(self, leasing: AsyncLeasing, lease: HeldLease, seconds: int) -> None:
        """Hold the lease for that long, or until it is lost; then give it back."""
        try:
            end = self._clock.now() + seconds
            while self._clock.now() < end and not lease.lost:
                await self._clock.sleep(min(1.0, end - self._clock.now()))
        finally:
            await leasing.__aexit__(None, None, None)
            self._holdings.pop(lease.name, None)


def server(client: AsyncClient, limits: SpendLimits, *, clock: Clock) -> MCPServer[None]:
    """The MCP server with all tools; it gives every held lease back when it ends."""
    tools = Tools(client, limits, clock=clock)

    @asynccontextmanager
    async def release_at_end(_: MCPServer[None]) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(tools.close)
            yield

    mcp_server: MCPServer[None] = MCPServer(
        "bidplane",
        version=__version__,
        instructions=INSTRUCTIONS,
        lifespan=release_at_end,
        log_level="WARNING",
    )
    for tool in (
        tools.prices,
        tools.quote,
        tools.wallet,
        tools.bid,
        tools.run,
        tools.why_pending,
        tools.leases,
        tools.release,
    ):
        mcp_server.tool()(tool)
    return mcp_server


@contextlib.contextmanager
def _as_tool_errors() -> Iterator[None]:
    """Turn our errors into tool errors, which the model can read and act on."""
    try:
        yield
    except BidplaneError as error:
        raise ToolError(str(error)) from error


def _plain(value: msgspec.Struct) -> dict[str, object]:
    """The struct as plain JSON types."""
    fields: dict[str, object] = msgspec.to_builtins(value)
    return fields


def _seconds(minutes: int) -> int:
    """The minutes in seconds; raises `ToolError` beyond the limits."""
    if not 1 <= minutes <= LONGEST_MINUTES:
        raise ToolError(f"minutes must be from 1 to {LONGEST_MINUTES}, not {minutes}")
    return 60 * minutes


def _names(pod: Object) -> tuple[str, ...]:
    """The names that select the pod: its own, and its Job's."""
    job = labels_of(pod).get("batch.kubernetes.io/job-name")
    return (name_of(pod), job) if job else (name_of(pod),)


def _is_waiting(pod: Object) -> bool:
    """Return True for a pod that has no node and has not ended."""
    return not spec_of(pod).get("nodeName") and work.outcome(pod) is None


def _pod_view(pod: Object) -> dict[str, object]:
    """The pod's state as the model sees it: why it waits, or how it ended."""
    view: dict[str, object] = {"pod": name_of(pod), "phase": phase_of(pod) or "Pending"}
    if ended := work.outcome(pod):
        return {**view, "exitCode": ended.code, "message": ended.message}
    reason, message = work.pending_reason(pod)
    if reason:
        view |= {"reason": reason, "message": message}
    annotation = annotations_of(pod).get(labels.PENDING)
    if annotation and _is_waiting(pod):
        with contextlib.suppress(msgspec.MsgspecError):
            view |= msgspec.json.decode(annotation)
    return view


def _amount(obj: Object, text: str) -> int:
    """Parse the amount in an object's annotation; raises `ToolError` that names the object."""
    try:
        return parse_credits(text)
    except ValueError as error:
        annotation = f"{obj['kind']} {name_of(obj)}: annotation {labels.COSTS_AT_MOST}"
        raise ToolError(f"refused: {annotation}: {error}; correct or delete it") from error


def _has_ended(job: Object) -> bool:
    return is_true(job, "Complete") or is_true(job, "Failed")
