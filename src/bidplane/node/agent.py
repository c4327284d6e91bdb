"""
A node: registers itself and its devices, keeps its heartbeat, says how it is.

What runs on it is the runtime's; this is only the node.
"""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import structlog

from bidplane.api import labels
from bidplane.api.kinds import NODE, RESOURCE_SLICE
from bidplane.core.topology import LINKS_ANNOTATION
from bidplane.errors import AlreadyExists, ApiError, NotFound
from bidplane.kube.client import Client, Object
from bidplane.machinery.clock import Clock, rfc3339
from bidplane.machinery.events import Recorder
from bidplane.node.heartbeat import RENEW_SECONDS, beat
from bidplane.node.inventory import Inventory
from bidplane.node.inventory.slices import DRIVER, degraded
from bidplane.node.server import WEBSOCKETS

_STATUS_SECONDS = 300.0  # with nothing new to say
_DEVICES_SECONDS = 5.0
_RETRY_SECONDS = 0.5
RUNTIME = "bidplane.dev/runtime"  # label: process, podman
SANDBOX_CONDITION = "Sandboxed"

log = structlog.get_logger(__name__)

DevicesAre = Callable[[Sequence[Object]], None]  # told the slices, at every look


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What the API is told of the node, once."""

    name: str
    address: str
    port: int  # of the kubelet's server
    runtime: str = "process"
    sandbox: str = ""  # what keeps pods apart; nothing if nothing does
    network: str = "loopback"
    labels: Mapping[str, str | None] = {}  # None: an earlier one goes
    annotations: Mapping[str, str] = {}
    pods: int = 110
    disk_bytes: int = 0  # of the file system its pods keep their files on
    version: str = "0"


class NodeAgent:
    def __init__(
        self,
        client: Client,
        identity: Identity,
        inventory: Inventory,
        *,
        clock: Clock,
        devices_are: DevicesAre = lambda slices: None,
    ) -> None:
        self._client = client
        self._identity = identity
        self._inventory = inventory
        self._clock = clock
        self._devices_are = devices_are
        self._recorder = Recorder("kubelet", clock=clock)
        self._uid = ""
        self._links = ""  # as they were told last
        self.registered = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled; an API that is away is waited for."""
        while True:
            try:
                await self.register()
                break
            except ApiError as error:
                log.warning("cannot register", node=self._identity.name, error=str(error))
                await self._clock.sleep(_RETRY_SECONDS)
        self.registered.set()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._again(self._renew, RENEW_SECONDS))
            group.create_task(self._again(self._tell, _STATUS_SECONDS))
            group.create_task(self._again(self._publish, _DEVICES_SECONDS))

    async def _again(self, work: Callable[[], Any], seconds: float) -> None:
        while True:
            try:
                await work()
            except ApiError as error:
                log.warning("retrying", node=self._identity.name, error=str(error))
                await self._clock.sleep(_RETRY_SECONDS)
                continue
            await self._clock.sleep(seconds)

    async def register(self) -> None:
        with suppress(AlreadyExists):
            await self._client.create(NODE, self._node())
        told = {"labels": self._labels(), "annotations": dict(self._identity.annotations)}
        found = await self._client.patch(NODE, self._identity.name, {"metadata": told})
        self._uid = found["metadata"]["uid"]
        await self._publish()
        await self._tell()
        await self._renew()
        if not self._identity.sandbox:
            await self._recorder.record(
                self._client,
                {"apiVersion": "v1", "kind": "Node", "metadata": {**found["metadata"]}},
                "NoSandbox",
                "there is no bubblewrap here: only pods this node trusts are run",
                type="Warning",
            )

    def _node(self) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self._identity.name},
            "spec": {},
        }

    def _labels(self) -> dict[str, str | None]:
        machine = platform.machine()
        return {
            "kubernetes.io/hostname": self._identity.name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine),
            RUNTIME: self._identity.runtime,
            **self._identity.labels,
        }

    # Status.

    async def _tell(self) -> None:
        known = await self._client.get(NODE, self._identity.name)
        status = self._status((known.get("status") or {}).get("conditions") or ())
        await self._client.patch(
            NODE, self._identity.name, {"status": status}, subresource="status"
        )

    def _status(self, known: Sequence[Object]) -> dict[str, Any]:
        identity = self._identity
        room = {
            "cpu": str(os.cpu_count() or 1),
            "memory": f"{_memory_kib()}Ki",
            "pods": str(identity.pods),
        }
        if identity.disk_bytes:
            room["ephemeral-storage"] = str(identity.disk_bytes)
        gpus = _gpus(self._inventory.slices())
        if gpus:
            room[labels.GPU_RESOURCE] = str(gpus)
        return {
            "capacity": room,
            "allocatable": room,
            "addresses": [
                {"type": "InternalIP", "address": identity.address},
                {"type": "Hostname", "address": identity.name},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": identity.port}},
            "nodeInfo": _node_info(identity),
            "declaredFeatures": [WEBSOCKETS],
            "conditions": self._conditions(known),
        }

    def _conditions(self, known: Sequence[Object]) -> list[dict[str, Any]]:
        sandbox = self._identity.sandbox
        told = [
            ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
            ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has memory"),
            ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has disk space"),
            ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has process ids"),
            (
                SANDBOX_CONDITION,
                "True" if sandbox else "False",
                "Bubblewrap" if sandbox == "bubblewrap" else sandbox.title() or "NoSandbox",
                f"pods are kept apart by {sandbox}"
                if sandbox
                else "there is no bubblewrap here: only trusted pods are run",
            ),
        ]
        before = {condition["type"]: condition for condition in known}
        now = rfc3339(self._clock.now())
        found = []
        for type_, value, reason, message in told:
            old = before.get(type_) or {}
            same = old.get("status") == value
            found.append(
                {
                    "type": type_,
                    "status": value,
                    "reason": reason,
                    "message": message,
                    "lastHeartbeatTime": now,
                    "lastTransitionTime": (same and old.get("lastTransitionTime")) or now,
                }
            )
        return found + [dict(c) for t, c in before.items() if t not in [one[0] for one in told]]

    # Heartbeat.

    async def _renew(self) -> None:
        await beat(self._client, self._identity.name, now=self._clock.now())
        await self._back_to_life()

    async def _back_to_life(self) -> None:
        """A node that was thought dead says at once that it is not."""
        known = await self._client.get(NODE, self._identity.name)
        for condition in (known.get("status") or {}).get("conditions") or ():
            if condition["type"] == "Ready" and condition["status"] != "True":
                await self._tell()

    # Devices.

    async def _publish(self) -> None:
        """The node's slices as the inventory has them, all in one generation; others go."""
        wanted = {one["metadata"]["name"]: one for one in self._inventory.slices()}
        self._devices_are(list(wanted.values()))
        await self._tell_links()
        listing = await self._client.list(
            RESOURCE_SLICE, fields=f"spec.nodeName={self._identity.name}"
        )
        ours = {one["spec"]["driver"] for one in wanted.values()} or {DRIVER}
        known = {
            one["metadata"]["name"]: one for one in listing.items if one["spec"]["driver"] in ours
        }
        if known.keys() == wanted.keys() and all(
            _content(known[name]) == _content(one) for name, one in wanted.items()
        ):
            return
        about = {"metadata": {"name": self._identity.name, "uid": self._uid}}
        for words in degraded(wanted.values()):
            await self._recorder.record(
                self._client,
                {"apiVersion": "v1", "kind": "Node", **about},
                "LinkDegraded",
                words,
                type="Warning",
            )
        newest = max((one["spec"]["pool"]["generation"] for one in known.values()), default=0)
        for name, one in wanted.items():
            pool = {**one["spec"]["pool"], "generation": newest + 1}
            await self._publish_one({**one["spec"], "pool": pool}, name, exists=name in known)
        for name in known.keys() - wanted.keys():
            with suppress(NotFound):
                await self._client.delete(RESOURCE_SLICE, name)

    async def _tell_links(self) -> None:
        """How the devices are joined, which no attribute of one of them can say."""
        links = self._inventory.links()
        if links != self._links:
            note = {"metadata": {"annotations": {LINKS_ANNOTATION: links or None}}}
            await self._client.patch(NODE, self._identity.name, note)
            self._links = links

    async def _publish_one(self, spec: Object, name: str, *, exists: bool) -> None:
        if exists:
            await self._client.patch(RESOURCE_SLICE, name, {"spec": spec})
            return
        owner = {"apiVersion": "v1", "kind": "Node", "name": self._identity.name, "uid": self._uid}
        fresh = {
            "apiVersion": RESOURCE_SLICE.api_version,
            "kind": RESOURCE_SLICE.kind,
            "metadata": {"name": name, "ownerReferences": [{**owner, "controller": True}]},
            "spec": spec,
        }
        with suppress(AlreadyExists):
            await self._client.create(RESOURCE_SLICE, fresh)


def _content(one: Object) -> Any:
    """What a slice offers; not of which generation it is."""
    return {key: value for key, value in one["spec"].items() if key != "pool"}


def _gpus(slices: Sequence[Object]) -> int:
    """Whole GPUs: what could be cut from one is not one more."""
    return sum(
        device.get("attributes", {}).get("type", {}).get("string") == "gpu"
        for one in slices
        for device in one["spec"].get("devices") or ()
    )


def _node_info(identity: Identity) -> dict[str, str]:
    machine = platform.machine()
    return {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine),
        "bootID": _text("/proc/sys/kernel/random/boot_id"),
        "containerRuntimeVersion": f"{identity.runtime}://{identity.version}",
        "kernelVersion": platform.release(),
        "kubeProxyVersion": "",
        "kubeletVersion": f"v{identity.version}-bidplane",
        "machineID": _text("/etc/machine-id"),
        "operatingSystem": "linux",
        "osImage": _os_name(),
        "systemUUID": "",
    }


def _text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    except OSError:
        return "Linux"


def _memory_kib() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 1024
