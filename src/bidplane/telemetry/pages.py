"""Counters read from the nodes' own servers, without a Prometheus."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence

from bidplane.api.kinds import Object
from bidplane.api.objects import status_of
from bidplane.http.client.caller import HttpCaller, NoAnswer, trust
from bidplane.telemetry import dcgm
from bidplane.telemetry.model import Counters

_SECONDS = 5.0


def url_of(node: Object) -> str:
    """The URL of a Node's own server, from its status; "" if that names none."""
    status = status_of(node)
    port = ((status.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}).get("Port")
    addresses = status.get("addresses") or ()
    address = next((a["address"] for a in addresses if a["type"] == "InternalIP"), "")
    if not port or not address:
        return ""
    return f"https://[{address}]:{port}" if ":" in address else f"https://{address}:{port}"


class NodePages:
    """Scrapes `/metrics` of nodes; `silent` lists those that did not answer."""

    def __init__(self, *, token: Callable[[], str], ca_file: str) -> None:
        self.silent: list[str] = []  # of the last reading
        self._http = HttpCaller(trust=trust(ca_file=ca_file), token=token, seconds=_SECONDS)

    async def close(self) -> None:
        await self._http.close()

    async def read(self, urls: Collection[str], *, only: Sequence[str] = ()) -> list[Counters]:
        """
        The counters of the nodes at `urls` (such as `https://10.0.0.7:10250`), each read once;
        with `only`, just the metrics of these names.
        """
        self.silent = []
        pages = await asyncio.gather(*(self._page(url, tuple(only)) for url in sorted(set(urls))))
        return dcgm.counters(point for page in pages for point in page)

    async def _page(self, url: str, only: tuple[str, ...]) -> list[dcgm.Point]:
        """The points of one node's page; none if it does not answer."""
        try:
            answer = await self._http.call("GET", f"{url}/metrics")
            if answer.code != 200:
                raise ValueError(f"HTTP {answer.code}")
            # In a thread: parsing the page of a thousand GPUs would block the event loop.
            return await asyncio.to_thread(_parse, answer.text, only)
        except (NoAnswer, ValueError):
            self.silent.append(url)
            return []


def _parse(page: str, only: tuple[str, ...]) -> list[dcgm.Point]:
    """The points of a page; with `only`, just those of these metrics."""
    if only:  # most of the time goes into reading lines
        page = "".join(line for line in page.splitlines(keepends=True) if line.startswith(only))
    return dcgm.parse(page)
