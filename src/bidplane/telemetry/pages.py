"""Counters straight from nodes' own servers, where no Prometheus stands between."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import httpx2

from bidplane.telemetry import dcgm
from bidplane.telemetry.model import Counters

_SECONDS = 5.0


def url_of(node: Mapping[str, Any]) -> str:
    """Where a Node's own server is, as the Node says; "" if it does not."""
    status = node.get("status") or {}
    port = ((status.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}).get("Port")
    addresses = status.get("addresses") or ()
    address = next((a["address"] for a in addresses if a["type"] == "InternalIP"), "")
    if not port or not address:
        return ""
    return f"https://[{address}]:{port}" if ":" in address else f"https://{address}:{port}"


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

    async def read(self, urls: Collection[str], *, only: Sequence[str] = ()) -> list[Counters]:
        """
        What `urls` (such as `https://10.0.0.7:10250`) tell, each asked once; or of that, the
        metrics with these names.
        """
        self.silent = []
        pages = await asyncio.gather(*(self._page(url, tuple(only)) for url in sorted(set(urls))))
        return dcgm.counters(point for page in pages for point in page)

    async def _page(self, url: str, only: tuple[str, ...]) -> list[dcgm.Point]:
        try:
            response = await self._http.get(
                f"{url}/metrics", headers={"Authorization": f"Bearer {self._token()}"}
            )
            if response.status_code != 200:
                raise ValueError(f"HTTP {response.status_code}")
            # Of a thousand GPUs it takes a while, and who asks has other things to do.
            return await asyncio.to_thread(_parse, response.text, only)
        except (httpx2.TransportError, ValueError):
            self.silent.append(url)
            return []


def _parse(page: str, only: tuple[str, ...]) -> list[dcgm.Point]:
    if only:  # most of the time goes into reading lines
        page = "".join(line for line in page.splitlines(keepends=True) if line.startswith(only))
    return dcgm.parse(page)
