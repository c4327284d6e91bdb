"""
Stories about workloads, told twice: on our plane with our controllers, in virtual time,
and on a real kube-apiserver with kube-controller-manager. The same assertions hold.

There is no kubelet in either: a story says itself what one would write.
"""

import asyncio
import contextlib
import secrets
import time

import pytest

from bidplane.api.kinds import NAMESPACE, POD
from bidplane.api.times import rfc3339
from bidplane.drivers.embedded import EmbeddedDriver, crds_for
from bidplane.errors import Conflict, NotFound
from bidplane.kube.http import HttpClient
from bidplane.machinery.clock import SystemClock
from bidplane.plane import Planes
from bidplane.runtime.identity.credentials import HOST_PLANE, Tokens
from bidplane.sim.loop import VirtualClock, run
from bidplane.wiring.controllers import Controllers
from bidplane.wiring.server import prepare_host

PATIENCE = 40.0


class Site:
    """One namespace of its own, and the hands of a user and of a kubelet."""

    def __init__(self, client, clock, look_seconds):
        self.client, self.clock, self._look_seconds = client, clock, look_seconds
        self.namespace = f"t-{secrets.token_hex(4)}"

    async def begin(self):
        await self.client.create(NAMESPACE, {"metadata": {"name": self.namespace}})

    async def until(self, condition):
        """What `condition` returns, once that is true."""
        end = self.clock.now() + PATIENCE
        while True:
            value = await condition()
            if value:
                return value
            assert self.clock.now() < end, f"never: {condition.__name__}"
            await asyncio.sleep(self._look_seconds)

    async def steady(self, seconds=1.0):
        """Let time pass, in which nothing should happen."""
        await asyncio.sleep(seconds)

    # The user.

    async def create(self, kind, name, spec, **metadata):
        obj = {"metadata": {"name": name, **metadata}, "spec": spec}
        return await self.client.create(kind, obj, self.namespace)

    async def patch(self, kind, name, change, **options):
        return await self.client.patch(kind, name, change, self.namespace, **options)

    async def delete(self, kind, name, **options):
        await self.client.delete(kind, name, self.namespace, **options)

    async def get(self, kind, name):
        try:
            return await self.client.get(kind, name, self.namespace)
        except NotFound:
            return None

    async def all(self, kind, labels=""):
        listing = await self.client.list(kind, self.namespace, labels=labels)
        return sorted(listing.items, key=lambda obj: obj["metadata"]["name"])

    async def status(self, kind, name, **expected):
        """The status of an object, once it says this (None: leaves it out, or zero)."""

        async def says():
            obj = await self.get(kind, name)
            status = (obj or {}).get("status") or {}
            fits = all((status.get(k) or None) == (v or None) for k, v in expected.items())
            self.last = status
            return status if obj is not None and fits else None

        try:
            return await self.until(says)
        except AssertionError:
            raise AssertionError(f"{name} never said {expected}: {self.last}") from None

    async def condition(self, kind, name, type, status="True"):
        async def holds():
            obj = await self.get(kind, name)
            conditions = ((obj or {}).get("status") or {}).get("conditions") or ()
            return next(
                (c for c in conditions if c["type"] == type and c["status"] == status), None
            )

        return await self.until(holds)

    # The pods, and their kubelet.

    async def pods(self, labels=""):
        """Those that are not going."""
        return [p for p in await self.all(POD, labels) if "deletionTimestamp" not in p["metadata"]]

    async def pods_are(self, count, labels=""):
        async def there():
            pods = await self.pods(labels)
            return pods if len(pods) == count else None

        if count:
            return await self.until(there)

        async def none():
            return not await self.pods(labels)

        await self.until(none)
        return []

    async def say(self, pod, **status):
        name = pod["metadata"]["name"]
        while True:
            try:
                return await self.patch(POD, name, {"status": status}, subresource="status")
            except Conflict:
                continue

    async def ready(self, *pods, ip="10.0.0.1"):
        for pod in pods:
            now = rfc3339(self.clock.now())
            condition = {"type": "Ready", "status": "True", "lastTransitionTime": now}
            with contextlib.suppress(NotFound):  # a rollout took it meanwhile
                await self.say(
                    pod, phase="Running", conditions=[condition], podIP=ip, podIPs=[{"ip": ip}]
                )

    async def ends(self, *pods, code=0):
        for pod in pods:
            now = rfc3339(self.clock.now())
            terminated = {"exitCode": code, "finishedAt": now, "startedAt": now}
            container = {
                "name": "main",
                "image": "x",
                "imageID": "",
                "ready": False,
                "restartCount": 0,
                "state": {"terminated": terminated},
            }
            await self.say(
                pod,
                phase="Failed" if code else "Succeeded",
                containerStatuses=[container],
                conditions=[{"type": "Ready", "status": "False", "lastTransitionTime": now}],
            )


def template(app="web", image="x:1", **spec):
    return {
        "metadata": {"labels": {"app": app}},
        "spec": {"containers": [{"name": "main", "image": image}], **spec},
    }


@pytest.fixture(
    params=["embedded", pytest.param("kube", marks=pytest.mark.kube)], ids=["embedded", "kube"]
)
def stories(request, tmp_path):
    """`stories(story)` tells `async def story(site)`."""
    if request.param == "embedded":
        return lambda story: run(_embedded(story, tmp_path))
    cluster = request.getfixturevalue("cluster")
    return lambda story: asyncio.run(_on_cluster(story, cluster))


@pytest.fixture
def embedded(tmp_path):
    """Stories that only virtual time can tell."""
    return lambda story: run(_embedded(story, tmp_path))


async def _embedded(story, folder):
    clock = VirtualClock()
    planes = Planes(
        folder, clock=clock, tokens=Tokens(b"t" * 32), crds=crds_for, durable=False, inline=True
    )
    await prepare_host(planes, None)
    host = planes.client(HOST_PLANE)
    driver = EmbeddedDriver(planes, "https://test")
    controllers = Controllers(host, driver, clock=clock, own_host=True)
    working = asyncio.create_task(controllers.run())
    site = Site(host, clock, 0.02)
    try:
        await site.begin()
        await story(site)
        assert not working.done(), working
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        await planes.close()


async def _on_cluster(story, cluster):
    client = HttpClient(cluster.url, token=cluster.token, ca_file=str(cluster.ca_file))
    site = Site(client, SystemClock(), 0.03)
    try:
        await site.begin()
        account = f"/api/v1/namespaces/{site.namespace}/serviceaccounts/default"
        end = time.monotonic() + PATIENCE
        while cluster.get(account)[0] != 200:
            assert time.monotonic() < end
            await asyncio.sleep(0.02)
        await story(site)
    finally:
        await client.delete(NAMESPACE, site.namespace)
        await client.close()
