"""
The node agent: registers the node and its devices, renews its heartbeat, reports its status.

The runtime runs the pods; this file is only about the node itself.
"""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog

from bidplane.api.kinds import NODE, RESOURCE_SLICE
from bidplane.api.times import rfc3339
from bidplane.core.devices.freeing import FREED, NOT_FREED, given_up_message
from bidplane.core.devices.topology import LINKS_ANNOTATION
from bidplane.errors import AlreadyExists, ApiError, NotFound
from bidplane.kube.client import KubeClient, Object
from bidplane.machinery.clock import Clock
from bidplane.machinery.events import Recorder
from bidplane.node.heartbeat import RENEW_SECONDS, renew_lease
from bidplane.node.inventory import Inventory, uuids
from bidplane.node.inventory.slices import DRIVER, degraded
from bidplane.node.process.gpumemory import GpuMemory
from bidplane.node.server import WEBSOCKETS

_STATUS_SECONDS = 300.0  # between two status writes when nothing changes
_DEVICES_SECONDS = 5.0
_RETRY_SECONDS = 0.5
RUNTIME = "bidplane.dev/runtime"  # label: process, podman
SANDBOX_CONDITION = "Sandboxed"

log = structlog.get_logger(__name__)

SlicesHandler = Callable[[Sequence[Object]], None]  # gets the node's slices at every reading


class NodeIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of a node that do not change while it runs."""

    name: str
    address: str
    port: int  # of the kubelet's server
    runtime: str = "process"
    sandbox: str = ""  # what isolates pods; "" if nothing does
    network: str = "loopback"
    labels: Mapping[str, str | None] = {}  # None removes an earlier one
    annotations: Mapping[str, str] = {}
    pods: int = 110
    disk_bytes: int = 0  # of the file system its pods keep their files on
    version: str = "0"


class NodeAgent:
    """Keeps a Node, its Lease and its ResourceSlices current in the API."""

    def __init__(
        self,
        client: KubeClient,
        identity: NodeIdentity,
        inventory: Inventory,
        *,
        clock: Clock,
        devices_are: SlicesHandler = lambda slices: None,
        memory: GpuMemory | None = None,
    ) -> None:
        self._client = client
        self._identity = identity
        self._inventory = inventory
        self._clock = clock
        self._devices_are = devices_are
        self._memory = memory
        self._publishing = asyncio.Lock()
        self._recorder = Recorder("kubelet", clock=clock)
        self._uid = ""
        self._links = ""  # as last written to the Node
        self._told: set[str] = set()  # withheld GPUs, by UUID, that an Event names
        self.registered = asyncio.Event()

    async def run(self) -> None:
        """
        Register and keep everything current until cancelled; waits while the API is unavailable.
        """
        while True:
            try:
                await self.register()
                break
            except ApiError as error:
                log.warning("cannot register", node=self._identity.name, error=str(error))
                await self._clock.sleep(_RETRY_SECONDS)
        self.registered.set()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._repeat(self._renew, RENEW_SECONDS))
            group.create_task(self._repeat(self._write_status, _STATUS_SECONDS))
            group.create_task(self._repeat(self.publish, _DEVICES_SECONDS))

    async def _repeat(self, work: Callable[[], Awaitable[None]], seconds: float) -> None:
        """Do `work` again and again, with that pause; sooner after a failure."""
        while True:
            try:
                await work()
            except ApiError as error:
                log.warning("retrying", node=self._identity.name, error=str(error))
                await self._clock.sleep(_RETRY_SECONDS)
                continue
            await self._clock.sleep(seconds)

    async def register(self) -> None:
        """Create or update the Node, with its slices, status and Lease."""
        with suppress(AlreadyExists):
            await self._client.create(NODE, self._node())
        metadata = {"labels": self._labels(), "annotations": dict(self._identity.annotations)}
        node = await self._client.patch(NODE, self._identity.name, {"metadata": metadata})
        self._uid = node["metadata"]["uid"]
        await self.publish()
        await self._write_status()
        await self._renew()
        if not self._identity.sandbox:
            await self._recorder.record(
                self._client,
                {"apiVersion": "v1", "kind": "Node", "metadata": {**node["metadata"]}},
                "NoSandbox",
                "bubblewrap is not installed: only pods that this node trusts run here",
                type="Warning",
            )

    def _node(self) -> Object:
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

    async def _write_status(self) -> None:
        """Write the node's status."""
        current = await self._client.get(NODE, self._identity.name)
        status = self._status((current.get("status") or {}).get("conditions") or ())
        await self._client.patch(
            NODE, self._identity.name, {"status": status}, subresource="status"
        )

    def _status(self, current_conditions: Sequence[Object]) -> Object:
        """The node's status, with its present conditions."""
        identity = self._identity
        capacity = {
            "cpu": str(os.cpu_count() or 1),
            "memory": f"{_memory_kib()}Ki",
            "pods": str(identity.pods),
        }
        if identity.disk_bytes:
            capacity["ephemeral-storage"] = str(identity.disk_bytes)
        # No count of GPUs: the ResourceSlices list them, and both together would count twice.
        return {
            "capacity": capacity,
            "allocatable": capacity,
            "addresses": [
                {"type": "InternalIP", "address": identity.address},
                {"type": "Hostname", "address": identity.name},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": identity.port}},
            "nodeInfo": _node_info(identity),
            "declaredFeatures": [WEBSOCKETS],
            "conditions": self._conditions(current_conditions),
        }

    def _conditions(self, current: Sequence[Object]) -> list[Object]:
        """The node's conditions; an unchanged one keeps its transition time."""
        sandbox = self._identity.sandbox
        states = [
            ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
            ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has memory"),
            ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has disk space"),
            ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has process ids"),
            (
                SANDBOX_CONDITION,
                "True" if sandbox else "False",
                "Bubblewrap" if sandbox == "bubblewrap" else sandbox.title() or "NoSandbox",
                f"pods are isolated by {sandbox}"
                if sandbox
                else "bubblewrap is not installed: only trusted pods run here",
            ),
        ]
        current_by_type = {condition["type"]: condition for condition in current}
        now = rfc3339(self._clock.now())
        conditions = []
        for type_, value, reason, message in states:
            old = current_by_type.get(type_) or {}
            is_unchanged = old.get("status") == value
            conditions.append(
                {
                    "type": type_,
                    "status": value,
                    "reason": reason,
                    "message": message,
                    "lastHeartbeatTime": now,
                    "lastTransitionTime": (is_unchanged and old.get("lastTransitionTime")) or now,
                }
            )
        return conditions + [
            dict(c) for t, c in current_by_type.items() if t not in [state[0] for state in states]
        ]

    # Heartbeat.

    async def _renew(self) -> None:
        """Renew the Lease."""
        await renew_lease(self._client, self._identity.name, now=self._clock.now())
        await self._restore_readiness()

    async def _restore_readiness(self) -> None:
        """Write the status at once if the control plane has marked this node as not ready."""
        node = await self._client.get(NODE, self._identity.name)
        for condition in (node.get("status") or {}).get("conditions") or ():
            if condition["type"] == "Ready" and condition["status"] != "True":
                await self._write_status()

    # Devices.

    async def publish(self) -> None:
        """
        Write the inventory's slices, all in one generation, and delete the node's other slices.
        """
        async with self._publishing:
            await self._publish_slices()

    async def _publish_slices(self) -> None:
        inventory = self._inventory.slices()
        self._devices_are(list(inventory))
        if self._memory is not None:
            inventory = await self._withhold(self._memory, inventory)
        slices = {slice_["metadata"]["name"]: slice_ for slice_ in inventory}
        await self._publish_links()
        listing = await self._client.list(
            RESOURCE_SLICE, fields=f"spec.nodeName={self._identity.name}"
        )
        drivers = {slice_["spec"]["driver"] for slice_ in slices.values()} or {DRIVER}
        published = {
            slice_["metadata"]["name"]: slice_
            for slice_ in listing.items
            if slice_["spec"]["driver"] in drivers
        }
        if published.keys() == slices.keys() and all(
            _content(published[name]) == _content(slice_) for name, slice_ in slices.items()
        ):
            return
        for message in degraded(slices.values()):
            await self._say("LinkDegraded", message, warning=True)
        newest = max(
            (slice_["spec"]["pool"]["generation"] for slice_ in published.values()), default=0
        )
        for name, slice_ in slices.items():
            pool = {**slice_["spec"]["pool"], "generation": newest + 1}
            await self._write_slice(
                {**slice_["spec"], "pool": pool}, name, exists=name in published
            )
        for name in published.keys() - slices.keys():
            with suppress(NotFound):
                await self._client.delete(RESOURCE_SLICE, name)

    async def _withhold(self, memory: GpuMemory, slices: Sequence[Object]) -> Sequence[Object]:
        """Return the slices with taints at the GPUs whose memory should be free and is not."""
        names = {uuid: device for (_, _, device), uuid in uuids(slices).items()}
        for device in await memory.review():
            await self._say(FREED, f"the memory of {names.get(device.uuid, device.uuid)} is free")
        new = memory.withheld.keys() - self._told
        self._told = set(memory.withheld)
        if new:
            by_name = {names.get(uuid, uuid): memory.withheld[uuid] for uuid in new}
            await self._say(NOT_FREED, given_up_message(by_name), warning=True)
        return memory.tainted(slices)

    async def _say(self, reason: str, message: str, *, warning: bool = False) -> None:
        """Record an Event about the node."""
        about = {"metadata": {"name": self._identity.name, "uid": self._uid}}
        await self._recorder.record(
            self._client,
            {"apiVersion": "v1", "kind": "Node", **about},
            reason,
            message,
            type="Warning" if warning else "Normal",
        )

    async def _publish_links(self) -> None:
        """
        Write the links between devices to the Node's annotation: no attribute of a device holds
        them.
        """
        links = self._inventory.links()
        if links != self._links:
            note = {"metadata": {"annotations": {LINKS_ANNOTATION: links or None}}}
            await self._client.patch(NODE, self._identity.name, note)
            self._links = links

    async def _write_slice(self, spec: Object, name: str, *, exists: bool) -> None:
        """Create or update one ResourceSlice."""
        if exists:
            await self._client.patch(RESOURCE_SLICE, name, {"spec": spec})
            return
        owner = {"apiVersion": "v1", "kind": "Node", "name": self._identity.name, "uid": self._uid}
        slice_ = {
            "apiVersion": RESOURCE_SLICE.api_version,
            "kind": RESOURCE_SLICE.kind,
            "metadata": {"name": name, "ownerReferences": [{**owner, "controller": True}]},
            "spec": spec,
        }
        with suppress(AlreadyExists):
            await self._client.create(RESOURCE_SLICE, slice_)


def _content(slice_: Object) -> Object:
    """The slice's spec without its pool and generation."""
    return {key: value for key, value in slice_["spec"].items() if key != "pool"}


def _node_info(identity: NodeIdentity) -> dict[str, str]:
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
