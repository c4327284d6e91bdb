"""
Wan2GP behind the activator, by the Endpoint that `bidplane serve wan2gp` writes: it sleeps beside
open tabs, and not while it renders. The server here is a small one: see `wan2gp.py`.
"""

from __future__ import annotations

import asyncio
import json

import pytest

from bidplane.api.kinds import ENDPOINT, NODE, POD
from bidplane.core.hosting.translation import host_name
from bidplane.core.serving.engines import EngineKind
from bidplane.core.serving.manifests import ServiceRequest, objects
from bidplane.telemetry.model import Counters, Holder

from .conftest import SPACE, Service, get
from .wan2gp import FOLLOW, HEARTBEAT, JOIN, STATUS, Wan2gp

POD_NAME = host_name("default", "llm")
WINDOW = 1800


def spec_of_serve():
    request = ServiceRequest(engine=EngineKind.WAN2GP, model="wan", image="wan2gp:1")
    spec = dict(next(manifest for kind, manifest in objects(request) if kind == ENDPOINT)["spec"])
    assert spec["idleSeconds"] == WINDOW
    return spec


def post(path: str, body: object) -> bytes:
    data = json.dumps(body).encode()
    length = f"Content-Length: {len(data)}"
    head = get(path, "Content-Type: application/json", length, "Accept: */*")
    return head.replace(b"GET ", b"POST ") + data


RENDER = post(JOIN, {"data": ["a cat"], "fn_index": 0, "session_hash": "tab1"})


async def place(service: Service) -> None:
    """The pod's place: on a node whose counters tell of its GPU."""
    container = {"name": "wan", "image": "wan2gp:1"}
    spec = {"nodeName": "box", "containers": [container]}
    await service.host.create(NODE, {"metadata": {"name": "box"}})
    status = {
        "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
    }
    await service.host.patch(NODE, "box", {"status": status}, subresource="status")
    await service.host.create(POD, {"metadata": {"name": POD_NAME}, "spec": spec}, SPACE)


async def start(service: Service) -> Wan2gp:
    """The pod starts, and its controller says so."""
    app = Wan2gp()
    service.port = await app.start()
    holder = Holder(namespace=SPACE, pod=POD_NAME)
    service.counters = lambda: [
        Counters(node="box", index=0, uuid="0", utilisation_percent=app.gpu_percent, holder=holder)
    ]
    await service.ready(await service.demanded(awake=True))
    while not service.live().is_open:
        await asyncio.sleep(0.005)
    return app


async def awake(service: Service, **spec: object) -> Wan2gp:
    await place(service)
    await service.endpoint(phase="Ready", **{**spec_of_serve(), **spec})
    return await start(service)


async def stop(service: Service, app: Wan2gp) -> None:
    """As the controller does once nothing is in flight that counts."""
    number = await service.demanded(awake=False)
    app.end()
    await service.says(phase="Asleep", answers=number, backends=[])


async def window_ends(service: Service) -> str:
    """A window without use passes; why it stays awake, or "" once it is to sleep."""
    question = service.live()._question
    question.reason = ""
    service.pass_time(WINDOW + 1)
    while service.live().demand.awake and not question.reason:
        await asyncio.sleep(0.005)
    return question.reason if service.live().demand.awake else ""


async def open_tab(service: Service, app: Wan2gp):
    reader, writer = await service.open(get(f"{HEARTBEAT}/tab1"))
    assert b"200" in await reader.readline()
    await reader.readuntil(b"data: ALIVE\n\n")
    assert app.tabs == 1
    return reader, writer


def test_it_sleeps_beside_an_open_tab_and_wakes_for_a_render(play):
    async def story(service):
        app = await awake(service)
        tab, writer = await open_tab(service, app)
        assert await window_ends(service) == ""
        assert app.tabs == 1
        assert not tab.at_eof()
        await stop(service, app)
        with pytest.raises(ConnectionResetError):
            await tab.read()
        # The browser opens the stream again and again, and that wakes nobody.
        assert (await service.ask(get(f"{HEARTBEAT}/tab1"))).startswith(b"HTTP/1.1 503 ")
        assert not service.live().demand.awake
        asked = asyncio.create_task(service.ask(RENDER))
        await service.held(1)
        app = await start(service)
        assert b"event_id" in await asked
        assert app.asked == ["GET /", f"POST {JOIN}"], "it was asked for its page, then to render"
        writer.close()
        app.end()

    play(story)


def test_a_render_whose_client_left_is_not_slept_through(play):
    async def story(service):
        app = await awake(service)
        _, tab = await open_tab(service, app)
        assert b"event_id" in await service.ask(RENDER)
        tab.close()
        for _ in range(2):
            assert await window_ends(service) == "GpuBusy: a GPU works 97 % of the time"
            assert service.live()._used_in_flight(0.0, 0) == 0
            assert len(app.renders) == 1
        await app.finish()
        assert await window_ends(service) == ""
        await stop(service, app)

    play(story)


def test_a_tab_that_follows_its_render_counts_until_the_render_ends(play):
    async def story(service):
        # Of its GPU nothing is asked: the request in flight is enough.
        app = await awake(service, idle={})
        assert b"event_id" in await service.ask(RENDER)
        following = asyncio.create_task(service.ask(get(f"{FOLLOW}?session_hash=tab1")))
        while f"GET {FOLLOW}" not in app.asked:
            await asyncio.sleep(0.005)
        service.pass_time(WINDOW + 1)
        assert service.live().demand.awake
        await app.finish()
        assert b"process_completed" in await following
        assert await window_ends(service) == ""
        await stop(service, app)

    play(story)


@pytest.mark.parametrize(
    ("idle", "reason"),
    [
        ({"queue": {"kind": "gradio", "path": STATUS}}, "QueueUnknown: it tells the jobs that"),
        ({"queue": {"kind": "json", "path": "/queue", "field": "running"}}, "QueueUnknown: GET"),
        ({"queue": {"kind": "gradio", "path": STATUS}, "gpuPercent": 5}, "GpuBusy"),
    ],
)
def test_no_route_tells_that_it_renders_so_none_is_believed(play, idle, reason):
    async def story(service):
        app = await awake(service, idle=idle)
        assert b"event_id" in await service.ask(RENDER)
        assert (await window_ends(service)).startswith(reason)
        app.end()

    play(story)


def test_a_gpu_that_nothing_measures_keeps_it_ready(play):
    async def story(service):
        app = await awake(service)
        service.counters = list
        assert (await window_ends(service)).startswith("GpuUnknown")
        app.end()

    play(story)
