"""Counters of a whole cluster, from the Prometheus that scrapes its dcgm-exporters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from bidplane.errors import UserError
from bidplane.http.client.caller import HttpCaller, NoAnswer, UnreadableUrl, trust
from bidplane.telemetry import dcgm
from bidplane.telemetry.dcgm import Point
from bidplane.telemetry.model import Counters

T = TypeVar("T")

_SECONDS = 15.0
# One metric at a time: `timestamp` drops the name, and two series must differ in their labels. A
# subquery looks at whole minutes only, so the present is asked for first.
_USE = "timestamp(DCGM_FI_DEV_GPU_UTIL) or timestamp(DCGM_FI_PROF_GR_ENGINE_ACTIVE)"
_NEWEST = f"time() - max({_USE} or max_over_time(({_USE})[1h:1m]))"
# A Prometheus that scrapes by Kubernetes' discovery keeps the exporter's own label apart.
_DCGM_OF_PODS = (
    '{__name__=~"DCGM_FI_.+",exported_pod!=""} or {__name__=~"DCGM_FI_.+",container!="",pod!=""}'
)


class QueryRefused(UserError):
    """A Prometheus refused a query, for one because it needs too much."""


class MetricHistory(msgspec.Struct, frozen=True):
    """The values of one series: times in seconds since the epoch, and what was measured."""

    labels: Mapping[str, str]
    values: Sequence[tuple[float, float]]


class PrometheusReader:
    """Reads counters from `URL/api/v1/query`; `token` for one that wants a bearer token."""

    def __init__(
        self,
        url: str,
        *,
        token: str = "",
        ca_file: str | None = None,
        seconds: float = _SECONDS,
    ) -> None:
        self._url = url.rstrip("/")
        self._http = HttpCaller(trust=trust(ca_file=ca_file), token=token, seconds=seconds)

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

    async def at(self, query: str, moment: float) -> list[Point]:
        """Return the points of an instant query at a moment of the past."""
        return await self._query(query, moment)

    async def over(self, query: str, *, begin: float, end: float, step: int) -> list[MetricHistory]:
        """Return the values of a range query at `begin`, each step after it, and at `end`."""
        params = {"query": query, "start": f"{begin:.3f}", "end": f"{end:.3f}", "step": f"{step}"}
        return await self._ask("query_range", params, _history)

    async def _query(self, query: str, moment: float | None = None) -> list[Point]:
        """The points that an instant query returns."""
        params = {"query": query} | ({} if moment is None else {"time": f"{moment:.3f}"})
        return await self._ask("query", params, _point)

    async def _ask(
        self, path: str, params: dict[str, str], read: Callable[[dict[str, Any]], T]
    ) -> list[T]:
        """Return the series of an answer, each as `read` returns it."""
        source = f"the Prometheus at {self._url}"
        try:
            url = f"{self._url}/api/v1/{path}"
            answer = await self._http.call("GET", url, params=params)
            body: dict[str, Any] = msgspec.json.decode(answer.body)
            if body.get("status") != "success":
                reason = body.get("error") or f"HTTP {answer.code}"
                raise QueryRefused(f"{source} refused: {reason}")
            return [read(item) for item in body["data"]["result"]]
        except (NoAnswer, UnreadableUrl) as error:
            raise UserError(f"{source} does not answer: {error}") from error
        except (msgspec.MsgspecError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"{source} did not answer with metrics") from error


def _history(item: dict[str, Any]) -> MetricHistory:
    return MetricHistory(item["metric"], [(float(at), float(text)) for at, text in item["values"]])


def _point(item: dict[str, Any]) -> Point:
    labels = dict(item["metric"])
    return Point(labels.pop("__name__", ""), labels, float(item["value"][1]))
