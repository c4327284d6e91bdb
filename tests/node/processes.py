"""
Real processes on a real node: `Box` is an API (a plane over HTTPS, or a kube-apiserver),
a node on this machine, and the few words a test needs.
"""

import asyncio
import os
import secrets
import socket
import time
from contextlib import suppress

from bidplane.api.kinds import EVENT, NAMESPACE, NODE, POD, RESOURCE_CLAIM
from bidplane.drivers.embedded import EmbeddedDriver, crds_for
from bidplane.errors import NotFound
from bidplane.http.server.serve import serve
from bidplane.kube.http import HttpClient
from bidplane.node.agent import NodeIdentity
from bidplane.node.fleet import NodeDeclaration
from bidplane.node.inventory import DeclaredDevices
from bidplane.node.process.container.images import Image, Images
from bidplane.node.process.network.addresses import choose
from bidplane.node.process.sandbox.confinement import Bare, Bubblewrap, find_bubblewrap
from bidplane.node.process.sandbox.limits import Cgroups
from bidplane.node.process.settings import ProcessSettings
from bidplane.plane import Planes
from bidplane.runtime.identity.certificates import ensure
from bidplane.runtime.identity.credentials import HOST_PLANE, OWNERS, Tokens
from bidplane.runtime.identity.credentials import Identity as Who
from bidplane.wiring.controllers import Controllers
from bidplane.wiring.node import ProcessNode

SPACE = "work"
# A busy machine is not a fault, nor is a kernel in a kernel.
WITHIN = float(os.environ.get("BIDPLANE_TEST_WITHIN", "60"))
IMAGES = Images(images={"tools": Image(), "tools:*": Image()})


class NoCgroups(Cgroups):
    """A machine where none can be written."""

    def _find(self):
        return


class ShiftedClock:
    """The real time, and what a test adds to it."""

    def __init__(self):
        self._added = 0.0
        self._moved = asyncio.Event()

    def now(self):
        return time.time() + self._added

    async def sleep(self, seconds):
        until = self.now() + seconds
        while (left := until - self.now()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._moved.wait()

    def advance(self, seconds):
        self._added += seconds
        self._moved.set()
        self._moved = asyncio.Event()


class PlaneApi:
    """Our own server over HTTPS, with the controllers."""

    def __init__(self, folder):
        self._folder = folder
        self._tasks = []

    async def open(self):
        clock, tokens = ShiftedClock(), Tokens(b"t" * 32)
        self.clock = clock
        certificates = ensure(self._folder, hosts=["127.0.0.1"], now=clock.now())
        self._planes = Planes(
            self._folder / "planes",
            clock=clock,
            tokens=tokens,
            crds=crds_for,
            ca=certificates.ca.read_text(),
        )
        uid = await self._planes.create(HOST_PLANE)
        listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"https://127.0.0.1:{listener.getsockname()[1]}/planes/{HOST_PLANE}"
        self.ca_file = str(certificates.ca)
        self.token = tokens.issue(
            Who(
                plane=HOST_PLANE,
                uid=uid,
                user="test",
                groups=(OWNERS,),
                expires=int(clock.now()) + 7200,
            )
        )
        controllers = Controllers(
            self._planes.client(HOST_PLANE),
            EmbeddedDriver(self._planes, self.url),
            clock=clock,
            own_host=True,
        )
        self._tasks = [
            asyncio.create_task(serve(self._planes, listener, certificates)),
            asyncio.create_task(controllers.run()),
        ]

    async def close(self):
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._planes.close()


class ClusterApi:
    """A real kube-apiserver with its controllers."""

    def __init__(self, cluster):
        self.url, self.token, self.ca_file = cluster.url, cluster.token, str(cluster.ca_file)

    async def open(self):
        return

    async def close(self):
        return


class Box:
    def __init__(self, api, folder):
        self.api = api
        self.folder = folder
        self.space = f"{SPACE}-{secrets.token_hex(3)}"
        self.name = f"box-{secrets.token_hex(3)}"
        self.clock = ShiftedClock()
        self.inventory = DeclaredDevices(NodeDeclaration(name=self.name, product="H100", gpus=2))
        self.node = None
        self._task = None
        self.engine = None
        self.memory = None

    async def open(self, **settings):
        await self.api.open()
        self.client = HttpClient(self.api.url, token=self.api.token, ca_file=self.api.ca_file)
        await self.client.create(NAMESPACE, {"metadata": {"name": self.space}})
        await self.start(**settings)

    async def start(self, **given):
        self.network = given.pop("network", "loopback")
        egress = given.pop("egress", False)
        self.memory = given.pop("memory", None) or self.memory
        bubblewrap = find_bubblewrap()
        engine = given.pop("engine", None) or (Bubblewrap(bubblewrap) if bubblewrap else Bare())
        given = {key: value(self) if callable(value) else value for key, value in given.items()}
        settings = {
            "node": self.name,
            "state": self.folder / "state",
            "engine": engine,
            "network": choose(self.network, egress=egress),
            "cgroups": Cgroups(f"bidplane-{self.name}"),
            "images": IMAGES,
            "trusted": ["*"],
            **given,
        }
        self.settings = ProcessSettings(**settings)
        self.node = ProcessNode(
            self.client,
            self.settings,
            NodeIdentity(name=self.name, address="127.0.0.1", port=1, sandbox=engine.kind),
            self.inventory,
            tokens=self.client,
            clock=self.clock,
            memory=self.memory,
        )
        self._task = asyncio.create_task(self.node.run())
        await self.until(self.node.agent.registered.is_set)

    async def stop(self):
        """The agent ends; what it runs does not."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def close(self):
        problem = self._task.exception() if self._task.done() and not self._task.cancelled() else 0
        if not problem:
            for pod in (await self.client.list(POD, self.space)).items:
                with suppress(NotFound):
                    await self.client.delete(
                        POD, pod["metadata"]["name"], self.space, grace_seconds=0
                    )
            folder = self.settings.pods
            await self.until(lambda: not any(folder.iterdir()))
        await self.stop()
        self.settings.cgroups.close()
        with suppress(NotFound):
            await self.client.delete(NODE, self.name)
        await self.client.close()
        await self.api.close()
        assert not problem, problem

    # Words.

    async def create(self, name, *command, pod=None, labels=None, **container):
        """A pod of one container, `main`, that runs a shell script or a command."""
        argv = ["/bin/sh", "-c", *command] if len(command) == 1 else list(command)
        main = {"name": "main", "image": "tools", **container}
        if argv:
            main["command"] = argv
        spec = {
            "nodeName": self.name,
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 5,
            "containers": [main],
            # Nobody here lifts the taint of a fresh node of a real cluster.
            "tolerations": [{"operator": "Exists"}],
            **(pod or {}),
        }
        body = {"metadata": {"name": name, "labels": labels or {}}, "spec": spec}
        return await self.client.create(POD, body, self.space)

    async def get(self, name):
        try:
            return await self.client.get(POD, name, self.space)
        except NotFound:
            return None

    async def phase(self, name):
        pod = await self.get(name)
        return pod["status"].get("phase") if pod else "gone"

    async def delete(self, name, **options):
        await self.client.delete(POD, name, self.space, **options)

    async def until(self, condition, within=WITHIN):
        """Wait until it is true; returns what it gave."""
        end = time.monotonic() + within
        while True:
            found = condition()
            if asyncio.iscoroutine(found):
                found = await found
            if found:
                return found
            assert time.monotonic() < end, f"not within {within} s"
            await asyncio.sleep(0.02)

    async def until_phase(self, name, phase, within=WITHIN):
        async def there():
            now = await self.phase(name)
            if now in ("Failed", "Succeeded", "gone") and now != phase:
                raise AssertionError(
                    f"{name} is {now}: {(await self.get(name) or {}).get('status')}"
                )
            return now == phase

        await self.until(there, within)
        return await self.get(name)

    async def until_container(self, name, check, container="main", within=WITHIN):
        """Until the container's status passes `check`."""

        async def there():
            pod = await self.get(name)
            status = pod["status"] if pod else {}
            every = [
                *(status.get("initContainerStatuses") or ()),
                *(status.get("containerStatuses") or ()),
            ]
            for one in every:
                if one["name"] == container and check(one):
                    return one
            return None

        return await self.until(there, within)

    async def until_ready(self, name, ready=True):
        async def there():
            pod = await self.get(name)
            conditions = {c["type"]: c["status"] for c in pod["status"].get("conditions") or ()}
            return conditions.get("Ready") == ("True" if ready else "False") and pod

        return await self.until(there)

    async def events(self, name):
        found = (await self.client.list(EVENT, self.space)).items
        told = {}
        for event in found:
            if event["involvedObject"]["name"] == name:
                told.setdefault(event["reason"], []).append(event["message"])
        return {reason: "\n".join(messages) for reason, messages in told.items()}

    async def until_event(self, name, reason):
        """The messages of that reason, once there is one."""

        async def told():
            return (await self.events(name)).get(reason)

        return await self.until(told)

    async def until_said(self, name, text):
        async def said():
            return await self.logs(name) == text

        await self.until(said)

    async def logs(self, name, container="main", **options):
        from bidplane.node.api import LogOptions

        pod = self.node.runtime.find(self.space, name)
        chunks = await self.node.runtime.logs(pod, container, LogOptions(**options))
        return b"".join([chunk async for chunk in chunks]).decode()

    async def exec(self, name, *argv, container="main", stdin=None, tty=False):
        pod = self.node.runtime.find(self.space, name)
        session = await self.node.runtime.exec(
            pod, container, argv, stdin=stdin is not None, tty=tty
        )
        try:
            if stdin is not None:
                await session.write(stdin)
                await session.close_stdin()
            out = b"".join([data async for data in session.stdout()])
            err = b"".join([data async for data in session.stderr()])
            return await session.wait(), out.decode(), err.decode()
        finally:
            await session.close()

    async def claim(self, name, *devices, driver="gpu.bidplane.dev"):
        exactly = {"deviceClassName": "gpu.bidplane.dev", "count": len(devices)}
        spec = {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}
        body = {"metadata": {"name": name}, "spec": spec}
        await self.client.create(RESOURCE_CLAIM, body, self.space)
        results = [
            {"request": "gpus", "driver": driver, "pool": self.name, "device": device}
            for device in devices
        ]
        status = {"allocation": {"devices": {"results": results}}}
        await self.client.patch(
            RESOURCE_CLAIM, name, {"status": status}, self.space, subresource="status"
        )


def pids_with(marker):
    """Processes of this machine whose command line has a word in it."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError), open(f"/proc/{entry}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
                if marker.encode() in words:
                    found.append(int(entry))
    return found
