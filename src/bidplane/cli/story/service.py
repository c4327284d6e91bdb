"""
The example's service: this machine is one more node of the fleet, and a page on it sleeps.

The page is a small Python process in a sandbox, without rights on the machine. It ends by itself
after ten minutes, so that nothing stays behind when Bidplane stops while it is awake.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import yaml

from bidplane.cli.account.serve import apply_object
from bidplane.core.serving.engines import EngineKind
from bidplane.core.serving.manifests import ServiceRequest, objects
from bidplane.kube.client import KubeClient
from bidplane.node import fleet as fleets
from bidplane.node.process.sandbox.confinement import find_bubblewrap
from bidplane.runtime.installation import Installation

NODE, AGENT, NAME = "here", "chat", "hello"
_PRODUCT = "L4"
_SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"  # what a sandbox has of the machine
# Other agents may win this machine's GPU: their pods run as a process that only waits.
_WAIT = ["/bin/sleep", "75"]
_PAGE = """
import http.server, os, threading, time

began = time.time()

class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        age, gpu = time.time() - began, os.environ["CUDA_VISIBLE_DEVICES"]
        text = f"Hello. I woke {age:.0f} s ago, on {gpu}.\\n"
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())

threading.Timer(600, os._exit, [0]).start()
address = os.environ["POD_IP"], int(os.environ["PORT"])
http.server.ThreadingHTTPServer(address, Page).serve_forever()
"""


class ExampleMachine(msgspec.Struct, frozen=True):
    """The files with which this machine runs the example's pods."""

    images: Path
    fleet: Path | None = None  # of a new installation; an older one keeps what it has


def prepare(target: Installation, default_fleet: Path) -> ExampleMachine | None:
    """Write the files; None if this machine cannot run the service, or its fleet has no place."""
    python = shutil.which("python3", path=_SYSTEM_PATH)
    if python is None or find_bubblewrap() is None:
        return None
    target.create()
    fleet: Path | None = None
    if not target.fleet.exists():
        fleet = target.folder / "example-fleet.yaml"
        declared = yaml.safe_load(default_fleet.read_text())
        declared["nodes"].append({"name": NODE, "product": _PRODUCT, "gpus": 1})
        pool = {"product": _PRODUCT, "floorPrice": "0.10", "noticeSeconds": 3}
        declared["pools"].append(pool)
        fleet.write_text(yaml.safe_dump(declared, sort_keys=False))
    elif all(node.name != NODE for node in fleets.load(target.fleet).nodes):
        return None
    images = target.folder / "example-images.yaml"
    commands = {NAME: {"command": [python]}, "example/*": {"command": _WAIT}}
    images.write_text(yaml.safe_dump({"images": commands}))
    return ExampleMachine(images, fleet)


async def create(plane: KubeClient, namespace: str) -> None:
    """Write the service into its agent's plane."""
    request = ServiceRequest(
        engine=EngineKind.PROCESS,
        model=NAME,
        image=NAME,
        ready="/readyz",
        idle_seconds=20,
        models="",
        pool=_PRODUCT.lower(),
        arguments=(shutil.which("python3", path=_SYSTEM_PATH) or "python3", "-c", _PAGE),
    )
    for kind, manifest in objects(request):
        await apply_object(plane, kind, manifest, namespace)
