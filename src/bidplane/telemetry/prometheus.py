"""Counters of a whole cluster, from the Prometheus that scrapes its dcgm-exporters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from bidplane.errors import UserError
from bidplane.http.client.caller import HttpCaller, NoAnswer, UnreadableUrl, trust
from bidplane.telemetry import dcgm
from bidplane.telemetry.dcgm import Point
from bidplane.telemetry.model import Counters

_SECONDS = 15.0
# One metric at a time: `timestamp` drops the name, and two series must differ in their labels. A
# subquery looks at whole minutes only, so the present is asked for first.
_USE = "timestamp(DCGM_FI_DEV_GPU_UTIL) or timestamp(DCGM_FI_PROF_GR_ENGINE_ACTIVE)"
_NEWEST = f"time() - max({_USE} or max_over_time(({_USE})[1h:1m]))"
# A Prometheus that scrapes by Kubernetes' discovery keeps the exporter's own label apart.
_DCGM_OF_PODS = (
    '{__name__=~"DCGM_FI_.+",exported_pod!=""} or {__name__=~"DCGM_FI_.+",container!="",pod!=""}'
)


class PrometheusReader:
    """Reads counters from `URL/api/v1/query`; `token` for one that wants a bearer token."""

    def __init__(self, url: str, *, token: str = "", ca_file: str | None = None) -> None:
        self._url = url.rstrip("/")
        self._http = HttpCaller(trust=trust(ca_file=ca_file), token=token, seconds=_SECONDS)

    async def close(self) -> None:
        await self._http.close()

    async def read(self, *, only: Sequence[str] = ()) -> list[Counters]:
        """The counters of all devices; with `only`, just these metrics."""
        names = "|".join(only or [*dcgm.METRICS, *dcgm.OWN])
        return dcgm.counters(await self._query(f'{{__name__=~"{names}"}}'))

    async def freshness(self) -> tuple[float | None, int]:
        """
        Return the age in seconds of the newest DCGM series of the last hour, None if there is none,
        and the number of series that name a pod.
        """
        newest = await self._query(_NEWEST)
        by_pod = await self._query(f"count({_DCGM_OF_PODS})")
        return newest[0].value if newest else None, int(by_pod[0].value) if by_pod else 0

    async def _query(self, query: str) -> list[Point]:
        """The points that an instant query returns."""
        source = f"the Prometheus at {self._url}"
        try:
            url = f"{self._url}/api/v1/query"
            answer = await self._http.call("GET", url, params={"query": query})
            body: dict[str, Any] = msgspec.json.decode(answer.body)
            if body.get("status") != "success":
                reason = body.get("error") or f"HTTP {answer.code}"
                raise UserError(f"{source} refused: {reason}")
            return [_point(item) for item in body["data"]["result"]]
        except (NoAnswer, UnreadableUrl) as error:
            raise UserError(f"{source} does not answer: {error}") from error
        except (msgspec.MsgspecError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"{source} did not answer with metrics") from error


def _point(item: dict[str, Any]) -> Point:
    labels = dict(item["metric"])
    return Point(labels.pop("__name__", ""), labels, float(item["value"][1]))
