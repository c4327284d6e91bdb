"""Counters of a whole cluster, from the Prometheus that scrapes its dcgm-exporters."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import Any

import httpx2
import msgspec

from bidplane.errors import UserError
from bidplane.telemetry import dcgm
from bidplane.telemetry.dcgm import Point
from bidplane.telemetry.model import Counters

_SECONDS = 15.0


class PrometheusReader:
    """Asks `URL/api/v1/query`; `token` for one that wants a bearer."""

    def __init__(self, url: str, *, token: str = "", ca_file: str | None = None) -> None:
        self._url = url.rstrip("/")
        self._http = httpx2.AsyncClient(
            timeout=_SECONDS,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            verify=ssl.create_default_context(cafile=ca_file),
            trust_env=False,
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def read(self, *, only: Sequence[str] = ()) -> list[Counters]:
        names = "|".join(only or [*dcgm.METRICS, *dcgm.OWN])
        return dcgm.counters(await self._query(f'{{__name__=~"{names}"}}'))

    async def _query(self, query: str) -> list[Point]:
        where = f"the Prometheus at {self._url}"
        try:
            response = await self._http.get(f"{self._url}/api/v1/query", params={"query": query})
            body: dict[str, Any] = msgspec.json.decode(response.content)
            if body.get("status") != "success":
                said = body.get("error") or f"HTTP {response.status_code}"
                raise UserError(f"{where} refused: {said}")
            return [_point(item) for item in body["data"]["result"]]
        except (httpx2.TransportError, httpx2.InvalidURL, httpx2.UnsupportedProtocol) as error:
            raise UserError(f"{where} does not answer: {error}") from error
        except (msgspec.MsgspecError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"{where} answered with something else than metrics") from error


def _point(item: dict[str, Any]) -> Point:
    labels = dict(item["metric"])
    return Point(labels.pop("__name__"), labels, float(item["value"][1]))
