"""
A real Gradio app behind the activator: its tabs do not keep it awake, its jobs do.

It needs Gradio in an environment of its own:

    python3 -m venv ~/.cache/bidplane/gradio
    ~/.cache/bidplane/gradio/bin/pip install gradio
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import Service, get

pytestmark = [pytest.mark.slow, pytest.mark.explored]

HOME = Path(os.environ.get("BIDPLANE_GRADIO", Path.home() / ".cache" / "bidplane" / "gradio"))
# Gradio tells the jobs that wait, and not those that run; so the app has a route of its own.
APP = """
import socket, time, fastapi, gradio, uvicorn

running = 0

def work(seconds):
    global running
    running += 1
    time.sleep(float(seconds))
    running -= 1
    return f"worked for {seconds} s"

with gradio.Blocks() as demo:
    seconds, result = gradio.Textbox(), gradio.Textbox()
    gradio.Button("Work").click(work, seconds, result, api_name="work")

app = fastapi.FastAPI()
app.get("/jobs")(lambda: {"running": running})
app = gradio.mount_gradio_app(app, demo, path="/ui")
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])
"""
# The client that Gradio ships, through the activator; a proxy's Host is what a browser sends.
CLIENT = """
import sys, gradio_client
client = gradio_client.Client(sys.argv[1], headers={"Host": sys.argv[2]}, verbose=False)
print(client.predict("0.1", api_name="/work"))
"""


def run(*arguments: str) -> subprocess.Popen[str]:
    python = HOME / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no Gradio in {HOME}: see the top of this file")
    return subprocess.Popen(
        [python, "-c", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "GRADIO_ANALYTICS_ENABLED": "False"},
    )


@pytest.fixture
def port() -> Iterator[int]:
    process = run(APP)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.terminate()
        process.communicate()


def post(path: str, body: Any) -> bytes:
    data = json.dumps(body).encode()
    length = f"Content-Length: {len(data)}"
    head = get(path, "Content-Type: application/json", length, "Accept: */*")
    return head.replace(b"GET ", b"POST ") + data


OWN_ROUTE = {"kind": "json", "path": "/jobs", "field": "running"}
GRADIOS = {"kind": "gradio", "path": "/ui/gradio_api/queue/status"}


async def ready(service: Service, port: int, queue: dict[str, str]) -> None:
    """An Endpoint that is awake, and whose application's queue must be quiet."""
    service.port = port
    await service.endpoint(
        phase="Ready",
        idleSeconds=100,
        ignorePaths=["/ui/gradio_api/heartbeat", "/jobs"],
        idle={"queue": queue},
    )
    await service.ready(await service.demanded(awake=True))
    while not service.live().is_open:
        await asyncio.sleep(0.01)


async def window_ends(service: Service) -> str:
    """The window passes, twice; what its application said, or "" once it is to sleep."""
    for _ in range(100):
        service.pass_time(101)
        await asyncio.sleep(0.05)
        if not (await service.status())["demand"]["awake"]:
            return ""
        if service.live()._question.reason:
            return service.live()._question.reason
    raise AssertionError("it neither sleeps nor says why")


def test_an_open_tab_does_not_keep_it_awake_and_a_job_whose_client_left_does(play, port):
    async def story(service):
        await ready(service, port, OWN_ROUTE)
        reader, tab = await service.open(get("/ui/gradio_api/heartbeat/abcdef"))
        assert b"200" in await reader.readline()
        assert b"event_id" in await service.ask(post("/ui/gradio_api/call/work", {"data": ["3"]}))
        while b'"running":0' in await service.ask(get("/jobs")):
            await asyncio.sleep(0.05)  # it takes the job from its queue a moment later
        assert await window_ends(service) == "QueueBusy: its application has 1 jobs"
        while b'"running":1' in await service.ask(get("/jobs")):
            await asyncio.sleep(0.1)
        service.live()._question.reason = ""
        assert await window_ends(service) == ""
        assert not reader.at_eof()  # the tab's stream is still open
        tab.close()

    play(story)


def test_gradios_own_route_leaves_out_the_job_that_runs_and_is_not_believed(play, port):
    async def story(service):
        await ready(service, port, GRADIOS)
        for _ in range(2):
            job = await service.ask(post("/ui/gradio_api/call/work", {"data": ["2"]}))
            assert b"event_id" in job
        while b'"running":0' in await service.ask(get("/jobs")):
            await asyncio.sleep(0.05)
        assert await window_ends(service) == "QueueBusy: its application has 1 jobs"
        while b'"queue_size":1' in await service.ask(get(GRADIOS["path"])):
            await asyncio.sleep(0.05)
        assert b'"running":1' in await service.ask(get("/jobs"))
        service.live()._question.reason = ""
        assert (await window_ends(service)).startswith("QueueUnknown: it tells the jobs that wait")

    play(story)


def test_gradios_own_client_waits_for_a_sleeping_app(play, port):
    async def story(service):
        service.port = port
        await service.endpoint()
        host, number = service.url
        client = run(CLIENT, f"http://{host}:{number}/ui", "llm.alice.localhost")
        await service.held(1)
        await service.ready(await service.demanded(awake=True))
        output, errors = await asyncio.to_thread(client.communicate)
        assert output == "worked for 0.1 s\n", errors[-2000:]

    play(story)
