"""Counters straight from nodes' own servers, where no Prometheus stands between."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Collection

import httpx2

from bidplane.telemetry import dcgm
from bidplane.telemetry.model import Counters

_SECONDS = 5.0


class NodePages:
    """Scrapes `/metrics` of nodes; one that does not answer tells nothing, and is named."""

    def __init__(self, *, token: Callable[[], str], ca_file: str) -> None:
        self._token = token
        self.silent: list[str] = []  # of the last reading
        self._http = httpx2.AsyncClient(
            verify=ssl.create_default_context(cafile=ca_file), timeout=_SECONDS, trust_env=False
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def read(self, urls: Collection[str]) -> list[Counters]:
        """What `urls` (such as `https://10.0.0.7:10250`) tell, each asked once."""
        self.silent = []
        pages = await asyncio.gather(*map(self._page, sorted(set(urls))))
        return dcgm.counters(point for page in pages for point in page)

    async def _page(self, url: str) -> list[dcgm.Point]:
        try:
            response = await self._http.get(
                f"{url}/metrics", headers={"Authorization": f"Bearer {self._token()}"}
            )
            if response.status_code != 200:
                raise ValueError(f"HTTP {response.status_code}")
            return dcgm.parse(response.text)
        except (httpx2.TransportError, ValueError):
            self.silent.append(url)
            return []
