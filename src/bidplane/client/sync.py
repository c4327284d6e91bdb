"""
`Client`: the same words without `await`.

One event loop in a thread of its own does the work, so that the heartbeat of a lease goes on
whatever the caller is busy with.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, Unpack

from bidplane.api.exchange import LeaseView, Order, Prices, Statement, Wallet
from bidplane.api.kinds import Object
from bidplane.client.aio import AsyncClient
from bidplane.client.asking import Price, Quote, Wish
from bidplane.client.config import Config
from bidplane.client.leasing import AsyncLeasing, Held, Waiting

T = TypeVar("T")
_END = b""


class LeaseOptions(Wish, Waiting, total=False):
    """What `lease` may be told."""


class Client:
    """See `AsyncClient`. Close it, or use it in a `with`."""

    def __init__(
        self,
        *,
        kubeconfig: str | Path | None = None,
        url: str | None = None,
        token: str | None = None,
        ca_file: str | Path | None = None,
        namespace: str | None = None,
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="bidplane-client", daemon=True
        )
        self._thread.start()

        async def make() -> AsyncClient:
            return AsyncClient(
                kubeconfig=kubeconfig, url=url, token=token, ca_file=ca_file, namespace=namespace
            )

        try:
            self._inner = self.do(make())
        except BaseException:
            self._end()
            raise

    def __repr__(self) -> str:
        return f"<Client {self.config.url}>"

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def config(self) -> Config:
        return self._inner.config

    def close(self) -> None:
        if self._thread.is_alive():
            self.do(self._inner.close())
            self._end()

    def prices(self) -> Prices:
        return self.do(self._inner.prices())

    def quote(self, *, gpus: int = 1, pool: str = "") -> list[Quote]:
        return self.do(self._inner.quote(gpus=gpus, pool=pool))

    def wallet(self) -> Wallet:
        return self.do(self._inner.wallet())

    def statement(self) -> Statement:
        return self.do(self._inner.statement())

    def leases(self) -> list[LeaseView]:
        return self.do(self._inner.leases())

    def order(self, pool: str, *, max_price: Price, key: str) -> Order:
        return self.do(self._inner.order(pool, max_price=max_price, key=key))

    def bids(self) -> list[Object]:
        return self.do(self._inner.bids())

    def bid(self, *, gpus: int, max_price: Price, **wish: Unpack[Wish]) -> Object:
        """As `AsyncClient.bid`: link, pool, share, selector, deadline, name."""
        return self.do(self._inner.bid(gpus=gpus, max_price=max_price, **wish))

    def withdraw(self, bid: str) -> None:
        self.do(self._inner.withdraw(bid))

    def release(self, lease: str) -> None:
        self.do(self._inner.release(lease))

    def lease(self, *, max_price: Price, gpus: int = 1, **more: Unpack[LeaseOptions]) -> Leasing:
        """
        As `AsyncClient.lease`, for a `with`: link, pool, share, selector, deadline, name; timeout,
        hold_seconds, on_progress, on_notice, annotations. The callbacks run in the client's thread.
        """

        async def make() -> AsyncLeasing:
            return self._inner.lease(gpus=gpus, max_price=max_price, **more)

        return Leasing(self, self.do(make()))

    def logs(self, pod: str) -> Iterator[bytes]:
        lines = self._inner.logs(pod)

        async def more() -> bytes:
            async for chunk in lines:
                return chunk
            return _END

        while chunk := self.do(more()):
            yield chunk

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Have `work` done; Ctrl-C cancels it, and waits until it has cleaned up."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            if not future.done():
                future.cancel()
                asyncio.run_coroutine_threadsafe(self._drained(), self._loop).result()
            raise

    async def _drained(self) -> None:
        """What was cancelled gives its leases back first."""
        others = [
            task for task in asyncio.all_tasks() if task is not asyncio.current_task()
            and task.cancelling()
        ]  # fmt: skip
        if others:
            await asyncio.wait(others, timeout=10)

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Leasing:
    """`with client.lease(…) as held:`"""

    def __init__(self, client: Client, inner: AsyncLeasing) -> None:
        self._client = client
        self._inner = inner

    def __enter__(self) -> Held:
        return self._client.do(self._inner.__aenter__())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client.do(self._inner.__aexit__(kind, error, trace))
