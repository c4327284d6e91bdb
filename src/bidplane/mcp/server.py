"""
`bidplane mcp`: an agent's market as tools for a model.

Every tool acts with the agent's own credential and within the limits its owner set. What is
bid for here is held by this process and ends with it; what is run is a Job in the agent's
plane and goes on without it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from bidplane import __version__
from bidplane.api import labels
from bidplane.api.kinds import BID, JOB, POD
from bidplane.api.money import format_credits, parse_credits, parse_price
from bidplane.client import AsyncClient, work
from bidplane.client.asking import price_text
from bidplane.client.leasing import AsyncLeasing, Held, fresh_name
from bidplane.errors import ApiError, BidplaneError, NotFound
from bidplane.machinery.clock import Clock, rfc3339
from bidplane.mcp.limits import Limits, bound, paid_since, refusal

INSTRUCTIONS = """
You have a wallet and your own Kubernetes on a GPU fleet where GPU time is auctioned every
second. Prices are credits per GPU-hour; a winner pays the least it could have bid and still
won, so bid what the time is worth to you. Look at `prices` or `quote` first. `run` starts a
command as a Job; `bid` holds GPUs for a while; `why_pending` says what would make waiting work
start; `release` gives GPUs back.
""".strip()

LONGEST_MINUTES = 24 * 60


class Tools:
    def __init__(self, client: AsyncClient, limits: Limits, *, clock: Clock) -> None:
        self._client = client
        self._limits = limits
        self._clock = clock
        # By bid: the most it can cost. What is in the plane says so itself, and outlives us; this
        # is what is being asked for, and may not be there yet.
        self._asked: dict[str, int] = {}
        self._held: dict[str, tuple[Held, asyncio.Task[None]]] = {}
        self._gate = asyncio.Lock()  # two calls at once must not spend one allowance twice

    async def prices(self) -> dict[str, Any]:
        """What a GPU costs now in each pool: credits per GPU-hour, devices, how many are leased."""
        return _plain(await self._client.prices())

    async def quote(self, gpus: int = 1, pool: str = "") -> dict[str, Any]:
        """What so many GPUs would cost an hour, the cheapest pool first; `soldAs` are paid for."""
        with _told():
            found = await self._client.quote(gpus=gpus, pool=pool)
        return {"quotes": [_plain(quote) for quote in found]}

    async def wallet(self) -> dict[str, Any]:
        """Your balance: what is held for running leases, what is free to spend."""
        with _told():
            return _plain(await self._client.wallet())

    async def leases(self) -> dict[str, Any]:
        """The GPUs you hold now, what each has cost so far, and when notice runs out."""
        with _told():
            found = await self._client.leases()
        shown = [_plain(lease) for lease in found]
        for lease in shown:
            held = self._held.get(lease["name"])
            if held is not None:
                lease["environment"] = held[0].env
        return {"leases": shown}

    async def bid(
        self,
        gpus: int,
        max_price: str,
        minutes: int = 60,
        pool: str = "",
        link: str = "domain",
        wait_seconds: int = 60,
    ) -> dict[str, Any]:
        """
        Bid for GPUs and hold what is won for at most `minutes`.

        Waits up to `wait_seconds` to win; then says why not, and what would have won. `link` is
        "domain" (one link domain), "nvlink", "x16" or "any" (scattered). Returns the lease,
        its devices, and the environment a command needs to use them.
        """
        async with self._gate:
            most = await self._allowed(max_price, gpus, _seconds(minutes))
            name = fresh_name("hold")
            self._asked[name] = most
        try:
            with _told():
                leasing = self._client.lease(
                    gpus=gpus,
                    max_price=max_price,
                    pool=pool,
                    link=link,  # type: ignore[arg-type]  # checked by the client
                    timeout=max(1, wait_seconds),
                    name=name,
                    annotations={labels.COSTS_AT_MOST: format_credits(most)},
                )
                held = await leasing.__aenter__()
        finally:
            self._asked.pop(name, None)
        keeper = asyncio.create_task(self._keep(leasing, held, _seconds(minutes)))
        self._held[held.name] = held, keeper
        return {
            "lease": held.name,
            "price": held.price,
            "devices": [_plain(device) for device in held.devices],
            "environment": held.env,
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
    ) -> dict[str, Any]:
        """
        Run a command on GPUs as a Job in your plane, for at most `minutes`, waiting included.

        Returns at once; `why_pending` and `leases` say how it goes on. If it is outbid it bids
        again by itself.
        """
        name = fresh_name("run")
        async with self._gate:
            most = await self._allowed(max_price, gpus, _seconds(minutes))
            with _told():
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

    async def why_pending(self, name: str = "") -> dict[str, Any]:
        """
        Why pods wait, what would win now, how long it may take, and what you can do.

        `name` is a pod's, or a Job's as `run` returned it; without one, all that wait.
        """
        with _told():
            listing = await self._client.kube.list(POD, self._client.namespace)
        chosen = [pod for pod in listing.items if name in ("", *_names(pod))]
        if name and not chosen:
            try:
                await self._client.kube.get(JOB, name, self._client.namespace)
            except ApiError:
                words = f"there is no pod, and no pod of a Job, called {name!r}"
                raise ToolError(words) from None
            return {"pods": [], "message": "the Job has no pod at the moment: look again"}
        return {"pods": [_pending(pod) for pod in chosen if name or _waits(pod)]}

    async def release(self, name: str) -> dict[str, Any]:
        """Give back a lease (its name), or end a Job that `run` started (its name)."""
        held = self._held.pop(name, None)
        if held is not None:
            held[1].cancel()
            await asyncio.gather(held[1], return_exceptions=True)
            return {"released": name}
        with _told():
            try:
                await self._client.kube.delete(JOB, name, self._client.namespace)
            except NotFound:
                await self._client.release(name)
        return {"released": name}

    async def close(self) -> None:
        for name in list(self._held):
            with contextlib.suppress(ApiError, ToolError):
                await self.release(name)

    async def _allowed(self, max_price: str, gpus: int, seconds: int) -> int:
        """The most a call can cost; raises when that is more than it may."""
        with _told():
            price = parse_price(price_text(max_price))
            statement = await self._client.statement()
            promised = await self._promised()
        most = bound(price, max(1, gpus), seconds)
        words = refusal(
            self._limits,
            price=price,
            most=most,
            paid=paid_since(statement.lines, rfc3339(self._clock.now() - 3600)),
            promised=promised,
        )
        if words is not None:
            raise ToolError(f"refused: {words}")
        return most

    async def _promised(self) -> dict[str, int]:
        """
        By name, the most that what goes on can still cost: of every bid and Job that this server
        or one before it was asked for. What has ended costs nothing more, and is paid.
        """
        going = [
            *(await self._client.kube.list(BID, self._client.namespace)).items,
            *(
                job
                for job in (await self._client.kube.list(JOB, self._client.namespace)).items
                if not _has_ended(job)
            ),
        ]
        found = dict(self._asked)
        for obj in going:
            said = (obj["metadata"].get("annotations") or {}).get(labels.COSTS_AT_MOST)
            if said is not None:
                found[obj["metadata"]["name"]] = _amount(obj, said)
        return found

    async def _keep(self, leasing: AsyncLeasing, held: Held, seconds: int) -> None:
        try:
            end = self._clock.now() + seconds
            while self._clock.now() < end and not held.lost:
                await self._clock.sleep(min(1.0, end - self._clock.now()))
        finally:
            await leasing.__aexit__(None, None, None)
            self._held.pop(held.name, None)


def server(client: AsyncClient, limits: Limits, *, clock: Clock) -> MCPServer[Any]:
    tools = Tools(client, limits, clock=clock)

    @asynccontextmanager
    async def life(_: MCPServer[Any]) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(tools.close)
            yield

    made: MCPServer[Any] = MCPServer(
        "bidplane",
        version=__version__,
        instructions=INSTRUCTIONS,
        lifespan=life,
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
        made.tool()(tool)
    return made


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """What the model can mend reaches it as a tool's error, not as a crash."""
    try:
        yield
    except BidplaneError as error:
        raise ToolError(str(error)) from error


def _plain(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(value)
    return found


def _seconds(minutes: int) -> int:
    if not 1 <= minutes <= LONGEST_MINUTES:
        raise ToolError(f"minutes must be from 1 to {LONGEST_MINUTES}, not {minutes}")
    return 60 * minutes


def _names(pod: Any) -> tuple[str, ...]:
    metadata = pod["metadata"]
    owner = (metadata.get("labels") or {}).get("batch.kubernetes.io/job-name")
    return (metadata["name"], owner) if owner else (metadata["name"],)


def _waits(pod: Any) -> bool:
    return not pod["spec"].get("nodeName") and work.outcome(pod) is None


def _pending(pod: Any) -> dict[str, Any]:
    metadata, status = pod["metadata"], pod.get("status") or {}
    shown: dict[str, Any] = {"pod": metadata["name"], "phase": status.get("phase", "Pending")}
    if ended := work.outcome(pod):
        return {**shown, "exitCode": ended.code, "message": ended.message}
    reason, message = work.pending_words(pod)
    if reason:
        shown |= {"reason": reason, "message": message}
    noted = (metadata.get("annotations") or {}).get(labels.PENDING)
    if noted and _waits(pod):
        with contextlib.suppress(msgspec.MsgspecError):
            shown |= msgspec.json.decode(noted)
    return shown


def _amount(obj: Any, said: str) -> int:
    try:
        return parse_credits(said)
    except ValueError as error:
        what = f"{obj['kind']} {obj['metadata']['name']}: annotation {labels.COSTS_AT_MOST}"
        raise ToolError(f"refused: {what}: {error}; mend or delete it") from error


def _has_ended(job: Any) -> bool:
    conditions = (job.get("status") or {}).get("conditions") or ()
    return any(c["type"] in ("Complete", "Failed") and c["status"] == "True" for c in conditions)
