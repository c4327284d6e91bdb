"""`AsyncClient`: an agent's own affairs, from Python."""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import httpx2
import msgspec

from bidplane.api.exchange import Leases, LeaseView, Order, Prices, Statement, Wallet
from bidplane.api.kinds import BID, GPU_LEASE, Object
from bidplane.client import asking, leasing
from bidplane.client.asking import Link, Price, Quote
from bidplane.client.config import Config, find
from bidplane.client.leasing import AsyncLeasing, Notice, Progress
from bidplane.errors import NotFound, Unavailable, api_error
from bidplane.kube.http import HttpClient
from bidplane.machinery.clock import Clock, SystemClock

T = TypeVar("T")
_SECONDS = 30.0


class AsyncClient:
    """
    Speaks for one agent: to its plane, and to the exchange. See `config` for where its
    credential comes from. Raises `UserError` for what the caller can fix, `ApiError` for what
    was refused.
    """

    def __init__(
        self,
        *,
        kubeconfig: str | Path | None = None,
        url: str | None = None,
        token: str | None = None,
        ca_file: str | Path | None = None,
        namespace: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.config: Config = find(
            kubeconfig=kubeconfig, url=url, token=token, ca_file=ca_file, environment=os.environ
        )
        self.namespace = namespace or self.config.namespace
        self._clock = clock or SystemClock()
        self.kube = HttpClient(
            self.config.url, token=self.config.token, ca_data=self.config.ca_data
        )
        self._http = httpx2.AsyncClient(
            base_url=f"{self.config.root}/exchange/v1/",
            verify=ssl.create_default_context(cadata=self.config.ca_data),
            headers={"Authorization": f"Bearer {self.config.token}"},
            timeout=_SECONDS,
            trust_env=False,
        )

    def __repr__(self) -> str:
        return f"<AsyncClient {self.config.url}>"

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self.kube.close()
        await self._http.aclose()

    async def prices(self) -> Prices:
        """What a GPU costs now, in each pool."""
        return await self._ask("GET", "prices", Prices)

    async def quote(self, *, gpus: int = 1, pool: str = "") -> list[Quote]:
        """What so many GPUs would cost now, the cheapest pool first."""
        return asking.quotes(await self.prices(), await self.wallet(), gpus=gpus, pool=pool)

    async def wallet(self) -> Wallet:
        return await self._ask("GET", f"wallets/{self.config.agent}", Wallet)

    async def statement(self) -> Statement:
        """Every credit that came or went."""
        return await self._ask("GET", f"wallets/{self.config.agent}/statement", Statement)

    async def leases(self) -> list[LeaseView]:
        """What the agent holds now, and what each has cost so far."""
        return (await self._ask("GET", "leases", Leases)).leases

    async def order(self, pool: str, *, max_price: Price, key: str) -> Order:
        """One GPU, now or not at all; asking twice with one key buys once."""
        body = {"pool": pool, "maxPrice": asking.price_text(max_price), "key": key}
        return await self._ask("POST", "orders", Order, msgspec.json.encode(body))

    async def bids(self) -> list[Object]:
        """The agent's bids, of every namespace, also those its pods became."""
        return list((await self.kube.list(BID)).items)

    async def bid(
        self,
        *,
        gpus: int,
        max_price: Price,
        link: Link = "domain",
        pool: str = "",
        share: str = "",
        selector: str = "",
        deadline: str = "",
        name: str = "",
    ) -> Object:
        """
        A standing bid, without waiting. What it wins must be claimed by a pod bound to its
        node within a minute; to hold GPUs yourself, use `lease`.
        """
        made = asking.bid(
            name or leasing.fresh_name("bid"),
            gpus=gpus,
            max_price=max_price,
            link=link,
            pool=pool,
            share=share,
            selector=selector,
            deadline=deadline,
        )
        return await self.kube.create(BID, made, self.namespace)

    async def withdraw(self, bid: str) -> None:
        """End a bid, and with it what it won, unless a pod uses that."""
        await self.kube.delete(BID, bid, self.namespace)

    async def release(self, lease: str) -> None:
        """Give a lease back early; what runs on it is ended first."""
        for mirror in (await self.kube.list(GPU_LEASE)).items:
            if mirror["metadata"]["name"] == lease:
                await self.kube.delete(GPU_LEASE, lease, mirror["metadata"]["namespace"])
                return
        raise NotFound(f"there is no lease {lease!r} of this agent")

    def lease(
        self,
        *,
        gpus: int = 1,
        max_price: Price,
        link: Link = "domain",
        pool: str = "",
        share: str = "",
        selector: str = "",
        deadline: str = "",
        name: str = "",
        timeout: float | None = None,
        hold_seconds: int = leasing.HOLD_SECONDS,
        on_progress: Callable[[Progress], None] | None = None,
        on_notice: Callable[[Notice], None] | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> AsyncLeasing:
        """
        GPUs for the length of an `async with`.

        `link`: "domain" is GPUs of one link domain, "nvlink" and "x16" ask for that link as well,
        "any" may be scattered.
        `timeout` bounds the wait (`LeaseTimeout`). `hold_seconds` is how long after this
        program's death the lease ends by itself. `name` and `annotations` are its bid's.
        """
        bid = asking.bid(
            name or leasing.fresh_name(),
            gpus=gpus,
            max_price=max_price,
            link=link,
            pool=pool,
            share=share,
            selector=selector,
            deadline=deadline,
            hold_seconds=hold_seconds,
            annotations=annotations,
        )
        return AsyncLeasing(
            self.kube,
            bid,
            namespace=self.namespace,
            clock=self._clock,
            timeout=timeout,
            on_progress=on_progress,
            on_notice=on_notice,
        )

    def logs(self, pod: str) -> AsyncIterator[bytes]:
        """What a pod prints, as it prints it."""
        return self.kube.logs(self.namespace, pod)

    async def _ask(self, method: str, path: str, type: type[T], content: bytes | None = None) -> T:
        try:
            response = await self._http.request(method, path, content=content)
        except httpx2.RequestError as error:
            raise Unavailable(f"{self.config.root} does not answer: {error}") from error
        if response.status_code >= 400:
            try:
                status = response.json()
                raise api_error(response.status_code, status.get("reason", ""), status["message"])
            except (ValueError, KeyError, TypeError, AttributeError):
                raise api_error(response.status_code, "", response.text[:500]) from None
        return msgspec.json.decode(response.content, type=type)
