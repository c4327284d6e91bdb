"""
`Client`: `AsyncClient` without `await`.

One event loop in a thread of its own does the work, so that a lease's heartbeat continues whatever
the caller does.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from types import TracebackType
from typing import TypeVar, Unpack

from bidplane.api.http.exchange import LeaseView, Order, Prices, StatementView, Wallet
from bidplane.api.kinds import Object
from bidplane.client.aio import AsyncClient
from bidplane.client.asking import GpuPreferences, Price, Quote
from bidplane.client.config import Config
from bidplane.client.leasing import AsyncLeasing, HeldLease, Waiting

T = TypeVar("T")
_END = b""


class LeaseOptions(GpuPreferences, Waiting, total=False):
    """The optional arguments of `lease`."""


class Client:
    """The blocking form of `AsyncClient`. Close it, or use it in a `with`."""

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
            self._stop_loop()
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
            self._stop_loop()

    def prices(self) -> Prices:
        return self.do(self._inner.prices())

    def quote(self, *, gpus: int = 1, pool: str = "") -> list[Quote]:
        return self.do(self._inner.quote(gpus=gpus, pool=pool))

    def wallet(self) -> Wallet:
        return self.do(self._inner.wallet())

    def statement(self) -> StatementView:
        return self.do(self._inner.statement())

    def leases(self) -> list[LeaseView]:
        return self.do(self._inner.leases())

    def order(self, pool: str, *, max_price: Price, key: str) -> Order:
        return self.do(self._inner.order(pool, max_price=max_price, key=key))

    def bids(self) -> list[Object]:
        return self.do(self._inner.bids())

    def bid(self, *, gpus: int, max_price: Price, **wish: Unpack[GpuPreferences]) -> Object:
        """
        Place a standing bid: see `AsyncClient.bid` for link, pool, share, selector, deadline,
        name.
        """
        return self.do(self._inner.bid(gpus=gpus, max_price=max_price, **wish))

    def withdraw(self, bid: str) -> None:
        self.do(self._inner.withdraw(bid))

    def release(self, lease: str) -> None:
        self.do(self._inner.release(lease))

    def lease(self, *, max_price: Price, gpus: int = 1, **options: Unpack[LeaseOptions]) -> Leasing:
        """
        Hold GPUs for the length of a `with`: see `AsyncClient.lease` for link, pool, share,
        selector, deadline, name, timeout, hold_seconds, on_progress, on_notice, annotations. The
        callbacks run in the client's thread.
        """

        async def make() -> AsyncLeasing:
            return self._inner.lease(gpus=gpus, max_price=max_price, **options)

        return Leasing(self, self.do(make()))

    def logs(self, pod: str) -> Iterator[bytes]:
        lines = self._inner.logs(pod)

        async def next_chunk() -> bytes:
            async for chunk in lines:
                return chunk
            return _END

        while chunk := self.do(next_chunk()):
            yield chunk

    def do(self, work: Coroutine[object, object, T]) -> T:
        """
        Run `work` in the client's loop; Ctrl-C cancels it, and waits until it has cleaned up.
        """
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            if not future.done():
                future.cancel()
                asyncio.run_coroutine_threadsafe(self._wait_for_cancelled(), self._loop).result()
            raise

    async def _wait_for_cancelled(self) -> None:
        """Wait until cancelled tasks have given their leases back."""
        cancelled = [
            task for task in asyncio.all_tasks() if task is not asyncio.current_task()
            and task.cancelling()
        ]  # fmt: skip
        if cancelled:
            await asyncio.wait(cancelled, timeout=10)

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Leasing:
    """The context manager of `with client.lease(…) as held:`."""

    def __init__(self, client: Client, inner: AsyncLeasing) -> None:
        self._client = client
        self._inner = inner

    def __enter__(self) -> HeldLease:
        return self._client.do(self._inner.__aenter__())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client.do(self._inner.__aexit__(kind, error, trace))
