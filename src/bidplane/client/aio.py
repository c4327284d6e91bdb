"""`AsyncClient`: an agent's bids, leases, wallet and pods, from Python."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import msgspec

from bidplane.api.http.exchange import (
    Leases,
    LeaseView,
    Order,
    OrderRequest,
    Prices,
    StatementView,
    Wallet,
)
from bidplane.api.kinds import BID, GPU_LEASE, Object
from bidplane.api.objects import name_of, namespace_of
from bidplane.client import asking, leasing
from bidplane.client.asking import Link, Price, Quote
from bidplane.client.config import Config, find
from bidplane.client.leasing import AsyncLeasing, LeaseProgress, Notice
from bidplane.errors import NotFound, Unavailable
from bidplane.http.client.caller import HttpCaller, NoAnswer, trust
from bidplane.kube.http import HttpClient
from bidplane.machinery.clock import Clock, SystemClock

T = TypeVar("T")
_SECONDS = 30.0


class AsyncClient:
    """
    Acts as one agent: in its plane, and at the exchange. See `config` for the source of its
    credential. Raises `UserError` for what the caller can fix, `ApiError` for what was refused.
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
        self._http = HttpCaller(
            f"{self.config.root}/exchange/v1/",
            trust=trust(ca_data=self.config.ca_data),
            token=self.config.token,
            seconds=_SECONDS,
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
        await self._http.close()

    async def prices(self) -> Prices:
        """The price of a GPU now, in each pool."""
        return await self._call_exchange("GET", "prices", Prices)

    async def quote(self, *, gpus: int = 1, pool: str = "") -> list[Quote]:
        """The cost of `gpus` GPUs now, the cheapest pool first."""
        return asking.quotes(await self.prices(), await self.wallet(), gpus=gpus, pool=pool)

    async def wallet(self) -> Wallet:
        """The agent's balance."""
        return await self._call_exchange("GET", f"wallets/{self.config.agent}", Wallet)

    async def statement(self) -> StatementView:
        """Every credit that came in or went out."""
        return await self._call_exchange(
            "GET", f"wallets/{self.config.agent}/statement", StatementView
        )

    async def leases(self) -> list[LeaseView]:
        """The leases that the agent holds now, and what each has cost so far."""
        return (await self._call_exchange("GET", "leases", Leases)).leases

    async def order(self, pool: str, *, max_price: Price, key: str) -> Order:
        """Buy one GPU now or not at all; two orders with one key buy once."""
        order = OrderRequest(pool=pool, max_price=asking.price_text(max_price), key=key)
        return await self._call_exchange("POST", "orders", Order, msgspec.json.encode(order))

    async def bids(self) -> list[Object]:
        """The agent's bids in every namespace, including those made for its pods."""
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
        Place a standing bid and return at once. A pod on the won lease's node must claim it within
        a minute; to hold GPUs yourself, use `lease`.
        """
        manifest = asking.bid(
            name or leasing.unique_name("bid"),
            gpus=gpus,
            max_price=max_price,
            link=link,
            pool=pool,
            share=share,
            selector=selector,
            deadline=deadline,
        )
        return await self.kube.create(BID, manifest, self.namespace)

    async def withdraw(self, bid: str) -> None:
        """Delete a bid, and with it the lease it won, unless a pod uses that."""
        await self.kube.delete(BID, bid, self.namespace)

    async def release(self, lease: str) -> None:
        """Give a lease back early; its pods are ended first."""
        for mirror in (await self.kube.list(GPU_LEASE)).items:
            if name_of(mirror) == lease:
                await self.kube.delete(GPU_LEASE, lease, namespace_of(mirror))
                return
        raise NotFound(f"this agent has no lease {lease!r}")

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
        on_progress: Callable[[LeaseProgress], None] | None = None,
        on_notice: Callable[[Notice], None] | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> AsyncLeasing:
        """
        Hold GPUs for the length of an `async with`.

        `link`: "domain" is GPUs of one link domain, "nvlink" and "x16" ask for that link as well,
        "any" may be scattered. `timeout` bounds the wait (`LeaseTimeout`). `hold_seconds` is how
        long after this program's death the lease ends by itself. `name` and `annotations` are its
        bid's.
        """
        bid = asking.bid(
            name or leasing.unique_name(),
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
        """Yield a pod's output as it is written."""
        return self.kube.logs(self.namespace, pod)

    async def _call_exchange(
        self, method: str, path: str, type: type[T], content: bytes | None = None
    ) -> T:
        """Send a request to the exchange and decode the answer."""
        try:
            answer = await self._http.call(method, path, body=content)
        except NoAnswer as error:
            raise Unavailable(f"{self.config.root} does not answer: {error}") from error
        return msgspec.json.decode(answer.accepted().body, type=type)
