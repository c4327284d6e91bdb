"""The use of the GPUs of an Endpoint's pods: unknown for a pod without a report."""

from __future__ import annotations

import asyncio
from typing import Any

from bidplane.activator.gpus import PodGpus
from bidplane.errors import NotFound
from bidplane.telemetry.model import Counters, Holder

NODE = {
    "metadata": {"name": "box"},
    "status": {
        "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
    },
}


class Host:
    async def get(self, kind: Any, name: str, namespace: str | None = None) -> Any:
        if kind.kind == "Node":
            return NODE
        if name == "gone":
            raise NotFound("there is no such pod")
        return {"metadata": {"name": name}, "spec": {"nodeName": "box"}, "status": {}}


class Pages:
    asked: set[str]

    async def read(self, urls: Any, *, only: Any = ()) -> list[Counters]:
        self.asked = set(urls)
        own, other = Holder(namespace="a", pod="p"), Holder(namespace="b", pod="p")
        return [
            Counters(node="box", index=0, uuid="0", utilisation_percent=3.0, holder=own),
            Counters(node="box", index=1, uuid="1", engine_percent=7.0, holder=own),
            Counters(node="box", index=2, uuid="2", utilisation_percent=99.0, holder=other),
        ]


def percents(*pods):
    pages = Pages()
    gpus = PodGpus(Host(), pages)  # type: ignore[arg-type]
    return list(asyncio.run(gpus.busy_percents("a", pods)))


def test_each_gpu_of_the_pods_and_no_other():
    assert percents("p") == [3.0, 7.0]
    assert percents("p", "q") == [3.0, 7.0, None]
    assert percents("gone") == [None]
