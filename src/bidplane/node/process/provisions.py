"""
Provisions of a pod before it starts: an address, a user, devices, volumes.

Volumes that are made from objects follow them while the pod runs. A running pod keeps its
provisions when the objects they were made from are deleted.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from bidplane.core.hosting import hostaccess
from bidplane.core.hosting.hostnames import hosts_file
from bidplane.core.hosting.hostpods import hostname
from bidplane.core.pods import spec as specs
from bidplane.core.pods.environment import Facts
from bidplane.core.pods.life import Obstacle
from bidplane.kube.client import Object
from bidplane.machinery.clock import Clock
from bidplane.node.process.container.launch import Supplied
from bidplane.node.process.network.addresses import PodNetwork
from bidplane.node.process.network.relay import Relay
from bidplane.node.process.records import Notes, PodFolder
from bidplane.node.process.sandbox.users import Users
from bidplane.node.process.settings import ProcessSettings, memory_bytes
from bidplane.node.process.supplies import ClaimedDevice, Supplies

_REFRESH_SECONDS = 30.0
_FIRST_RETRY_SECONDS = 0.5
_LAST_RETRY_SECONDS = 30.0


class Provisions:
    """One pod's provisions. `gather` and `refresh` raise `ConfigError` or `OSError`."""

    def __init__(
        self,
        folder: PodFolder,
        notes: Notes,
        *,
        settings: ProcessSettings,
        supplies: Supplies,
        users: Users,
        clock: Clock,
    ) -> None:
        self.complete = False
        self.supplied: Supplied | None = None
        self.waiting: Obstacle | None = None  # why it cannot be complete yet
        self.retry_at = 0.0
        self.refresh_at = 0.0
        self._folder = folder
        self._notes = notes
        self._settings = settings
        self._supplies = supplies
        self._users = users
        self._clock = clock
        self._failures = 0
        self._relay: Relay | None = None

    def __repr__(self) -> str:
        return f"<Provisions {'complete' if self.complete else self.waiting}>"

    @property
    def devices(self) -> Sequence[ClaimedDevice]:
        return self.supplied.devices if self.supplied is not None else ()

    @property
    def address(self) -> str:
        return self.supplied.place.address if self.supplied else self._notes.record.address

    def refusal(self, pod: Object) -> tuple[str, str] | None:
        """Return the reason and message if this node never runs the pod; else None."""
        trusted = self._settings.trusts(pod)
        if not self._settings.engine.sandboxed and not trusted:
            return "NoSandbox", (
                "this node has no bubblewrap, so it runs only pods it trusts:"
                f" start it with --trusted {pod['metadata']['namespace']},"
                " or install bubblewrap"
            )
        for problem in specs.problems(pod):
            return "Unsupported", f"this node cannot run the pod: {problem}"
        for container, _ in specs.containers(pod) if not trusted else ():
            name = container["name"]
            if (container.get("securityContext") or {}).get("privileged"):
                return "Forbidden", f"container {name}: privileged is for trusted pods"
            for field, host in hostaccess.named_hosts(container):
                return "Forbidden", (
                    f"container {name}: {field}: {host}: only trusted pods may name a host, as the"
                    " request comes from the node; remove it to address the pod itself"
                )
        return None

    async def gather(self, pod: Object) -> None:
        """Get all that the pod needs; `complete` is true afterwards."""
        uid = pod["metadata"]["uid"]
        place = await self._place(pod, uid)
        await self._open_relay(place)
        engine = self._settings.engine
        self._notes.keep(uid=self._users.take(uid) if engine.own_user else None)
        if engine.sandboxed:
            self._folder.close_to_others(self._notes.record.uid)
        # First without devices and volumes: a running pod is adopted even if its objects are gone.
        self.supplied = Supplied(place=place, facts=self._facts(place), user=self._notes.record.uid)
        devices = await self._supplies.devices(pod)
        self.supplied = msgspec.structs.replace(self.supplied, devices=devices)
        await self.refresh(pod)
        self.complete, self.waiting = True, None

    async def _place(self, pod: Object, uid: str) -> PodNetwork:
        network, address = self._settings.network, self._notes.record.address
        if pod["spec"].get("hostNetwork"):
            return PodNetwork(self._settings.host_ip)
        if address:
            return network.find(uid, address)
        place = await network.join(uid, self._settings.agent_of(pod))
        self._notes.keep(address=place.address)
        return place

    async def _open_relay(self, place: PodNetwork) -> None:
        server = self._settings.server
        if self._relay is not None or server is None or not Relay.needed(place, server[0]):
            return
        relay = Relay(*server)
        with suppress(OSError):  # the pod itself listens on that port
            await relay.open(place)
            self._relay = relay

    def _facts(self, place: PodNetwork) -> Facts:
        return Facts(
            pod_ip=place.address,
            host_ip=self._settings.host_ip,
            node_cpus=os.cpu_count() or 1,
            node_memory=memory_bytes(),
        )

    async def refresh(self, pod: Object) -> None:
        """Write the volumes again: ConfigMaps, Secrets and tokens may have changed."""
        assert self.supplied is not None
        self.refresh_at = self._clock.now() + _REFRESH_SECONDS
        sources = await self._supplies.sources(pod)
        volumes = await self._supplies.volumes(
            pod, self._folder, sources, self.supplied.facts, self._notes.record.uid
        )
        address = self.supplied.place.address
        hosts = self._folder.write_hosts(hosts_file(pod, address, hostname(pod)))
        self.supplied = msgspec.structs.replace(
            self.supplied, sources=sources, volumes=volumes, hosts=str(hosts)
        )

    def schedule_retry(self, problem: str) -> None:
        """Set the time of the next try, with exponential backoff."""
        self._failures += 1
        wait = min(_FIRST_RETRY_SECONDS * 2**self._failures, _LAST_RETRY_SECONDS)
        self.retry_at = self._clock.now() + wait
        self.waiting = Obstacle("ContainerCreating", problem)

    async def close(self) -> None:
        """Close the relay, which lives in this process."""
        if self._relay is not None:
            await self._relay.close()
            self._relay = None

    async def release(self, pod: Object) -> None:
        """Free the cgroups, address and devices of a pod whose processes have ended."""
        uid = pod["metadata"]["uid"]
        await self.close()
        for container, _ in specs.containers(pod):
            self._settings.cgroups.remove(f"{uid}-{container['name']}")
        if self._notes.record.address:
            await self._settings.network.leave(uid)
        await self._supplies.release(uid)
