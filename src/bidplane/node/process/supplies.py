"""
What a pod needs before it can start: objects it names, tokens, claimed devices, volumes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import msgspec

from bidplane.api.kinds import (
    CONFIG_MAP,
    PERSISTENT_VOLUME,
    RESOURCE_CLAIM,
    VOLUME_CLAIM,
)
from bidplane.core.pods import spec as specs
from bidplane.core.pods.environment import ConfigError, Facts, Sources
from bidplane.core.pods.files import MADE_FROM_OBJECTS, files
from bidplane.core.references import TokenWish, references, wishes_of
from bidplane.core.translation import origin
from bidplane.errors import NotFound, UserError
from bidplane.kube.client import Client, Object
from bidplane.machinery.clock import Clock, parse_rfc3339
from bidplane.node.inventory import claimstatus
from bidplane.node.inventory.partitions import Partitions
from bidplane.node.process import mounts
from bidplane.node.process.mounts import Declared, Source
from bidplane.node.process.records import PodFolder

_RENEW_AT = 0.8  # of a token's life, as the kubelet does


Present = Mapping[tuple[str, str, str], str]  # the node's devices, and their UUIDs


class TokenClient(Protocol):
    async def request_token(self, namespace: str, account: str, request: Object) -> Object:
        """A TokenRequest, answered."""


class Device(msgspec.Struct, frozen=True):
    claim: str  # as the pod calls it
    request: str
    driver: str
    pool: str
    device: str
    uuid: str = ""  # of a MIG instance that was made for it

    @property
    def key(self) -> tuple[str, str, str]:
        return self.driver, self.pool, self.device


class Supplies:
    """For all pods of a node."""

    def __init__(
        self,
        client: Client,
        tokens: TokenClient | None,
        declared: Declared,
        *,
        partitions: Partitions | None = None,
        clock: Clock,
    ) -> None:
        self._client = client
        self._partitions = partitions
        self._tokens = tokens
        self._declared = declared
        self._clock = clock
        self._known: dict[tuple[str, TokenWish], tuple[str, float]] = {}  # token, renew at

    async def sources(self, pod: Object) -> Sources:
        maps: dict[str, Object | None] = {}
        secrets: dict[str, Object | None] = {}
        for one in references(pod):
            found = maps if one.kind == CONFIG_MAP else secrets
            try:
                obj = await self._client.get(one.kind, one.name, pod["metadata"]["namespace"])
                found[one.name] = {**obj, "kind": one.kind.kind}
            except NotFound:
                found[one.name] = None
        return Sources(config_maps=maps, secrets=secrets)

    async def devices(self, pod: Object) -> list[Device]:
        """
        What was allocated to the pod's claims, MIG instances made; raises `ConfigError` while
        it was not, or they cannot be.
        """
        found: list[Device] = []
        claims: list[Object] = []
        for name, claim in specs.claim_names(pod).items():
            if not claim:
                raise ConfigError(f"the ResourceClaim for {name!r} has not been created yet")
            try:
                obj = await self._client.get(RESOURCE_CLAIM, claim, pod["metadata"]["namespace"])
            except NotFound:
                raise ConfigError(f'resourceclaims "{claim}" not found') from None
            allocation = (obj.get("status") or {}).get("allocation")
            if allocation is None:
                raise ConfigError(f'the ResourceClaim "{claim}" is not allocated')
            claims.append(obj)
            for result in (allocation.get("devices") or {}).get("results") or ():
                # A request with alternatives is told as REQUEST/ALTERNATIVE.
                request = result["request"].partition("/")[0]
                found.append(
                    Device(name, request, result["driver"], result["pool"], result["device"])
                )
        return await self._with_instances(pod["metadata"]["uid"], found, claims)

    async def _with_instances(
        self, uid: str, devices: list[Device], claims: Sequence[Object]
    ) -> list[Device]:
        keys = [device.key for device in devices]
        if self._partitions is None or not self._partitions.concern(keys):
            return devices
        now = self._clock.now()
        try:
            made = await self._partitions.take(uid, keys)
        except UserError as error:
            for claim in claims:
                await claimstatus.tell(
                    self._client, claim, {}, failed=keys, problem=str(error), now=now
                )
            raise ConfigError(str(error)) from error
        for claim in claims:
            await claimstatus.tell(self._client, claim, made, now=now)
        return [
            msgspec.structs.replace(device, uuid=made[device.key].uuid)
            if device.key in made
            else device
            for device in devices
        ]

    async def volumes(
        self,
        pod: Object,
        folder: PodFolder,
        sources: Sources,
        facts: Facts,
        owner: int | None,
    ) -> dict[str, Source]:
        """Every volume of the pod, there; raises `ConfigError` that names the one that is not."""
        found = {}
        for volume in pod["spec"].get("volumes") or ():
            try:
                found[volume["name"]] = await self._volume(
                    pod, volume, folder.volumes / volume["name"], sources, facts, owner
                )
            except ConfigError as error:
                raise ConfigError(
                    f'MountVolume.SetUp failed for volume "{volume["name"]}" : {error}'
                ) from error
        return found

    async def _volume(
        self,
        pod: Object,
        volume: Object,
        folder: Path,
        sources: Sources,
        facts: Facts,
        owner: int | None,
    ) -> Source:
        if any(volume.get(kind) is not None for kind in MADE_FROM_OBJECTS):
            tokens = {wish: await self._token(pod, wish) for wish in wishes_of(volume)}
            mounts.write_files(folder, files(pod, volume, sources, facts, tokens), owner)
            return Source(folder, read_only=True)
        if volume.get("hostPath") is not None:
            return mounts.host_path(volume, self._declared)
        namespace = pod["metadata"]["namespace"]
        if volume.get("persistentVolumeClaim") is not None:
            claim = volume["persistentVolumeClaim"]
            source = await self._claimed(namespace, claim["claimName"])
            return Source(source.path, source.read_only or bool(claim.get("readOnly")))
        if volume.get("ephemeral") is not None:
            return await self._claimed(namespace, f"{pod['metadata']['name']}-{volume['name']}")
        return mounts.empty_dir(folder, volume.get("emptyDir") or {}, owner)

    async def _claimed(self, namespace: str, claim: str) -> Source:
        obj: Object | None = None
        with suppress(NotFound):
            obj = await self._client.get(VOLUME_CLAIM, claim, namespace)
        # Of an agent's claim, the name its agent and the owner know.
        name = (origin(obj) or ("", claim))[1] if obj is not None else claim
        declared = self._declared.named(namespace, name) or self._declared.claim(namespace, claim)
        if declared is not None:
            return Source(Path(declared.path), declared.read_only)
        bound = obj["spec"].get("volumeName") if obj is not None else None
        try:
            volume = await self._client.get(PERSISTENT_VOLUME, bound or "-")
        except NotFound:
            raise ConfigError(
                f'persistentvolumeclaim "{name}" is bound to no directory of this node: its'
                " owner declares one, as shared or claims in the file given with --volumes"
            ) from None
        for kind in ("hostPath", "local"):
            if volume["spec"].get(kind):
                path = {"hostPath": {"path": volume["spec"][kind]["path"]}}
                return mounts.host_path(path, self._declared)
        raise ConfigError(
            f'the volume of persistentvolumeclaim "{name}" is neither hostPath nor local'
        )

    async def _token(self, pod: Object, wish: TokenWish) -> str:
        metadata = pod["metadata"]
        known = self._known.get((metadata["uid"], wish))
        now = self._clock.now()
        if known is not None and now < known[1]:
            return known[0]
        if self._tokens is None:
            raise ConfigError("this node cannot ask for tokens")
        request: dict[str, Any] = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {
                "audiences": [wish.audience] if wish.audience else [],
                "expirationSeconds": wish.seconds,
                "boundObjectRef": {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "name": metadata["name"],
                    "uid": metadata["uid"],
                },
            },
        }
        account = pod["spec"].get("serviceAccountName") or "default"
        try:
            answer = await self._tokens.request_token(metadata["namespace"], account, request)
        except NotFound:
            raise ConfigError(f'serviceaccounts "{account}" not found') from None
        until = parse_rfc3339(answer["status"]["expirationTimestamp"])
        self._known[metadata["uid"], wish] = (
            answer["status"]["token"],
            now + _RENEW_AT * (until - now),
        )
        return str(answer["status"]["token"])

    async def release(self, uid: str) -> None:
        """The pod has ended: what was made for it alone goes."""
        if self._partitions is not None:
            await self._partitions.leave(uid)
        self._known = {key: value for key, value in self._known.items() if key[0] != uid}


def of_container(container: Object, devices: Sequence[Device]) -> list[Device]:
    """The devices a container may use: of the claims, and requests, it names."""
    wanted = set(specs.container_claims(container))
    return [d for d in devices if (d.claim, "") in wanted or (d.claim, d.request) in wanted]


def is_lost(device: Device, present: Present) -> bool:
    """Whether our own inventory should have it and has not; others' devices it cannot know."""
    return is_ours(device, present) and device.key not in present


def is_ours(device: Device, present: Present) -> bool:
    """Whether it is a GPU as this node publishes them, and not what is beside them."""
    return not present or any(device.driver == driver for driver, _, _ in present)


def device_variables(ids: Sequence[str], *, gpus: bool) -> dict[str, str]:
    """How a program learns which GPUs are its own."""
    if not gpus:
        # Nothing was claimed: without these a program would see every GPU of the machine.
        return {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"}
    return {
        "CUDA_VISIBLE_DEVICES": ",".join(ids),
        "NVIDIA_VISIBLE_DEVICES": ",".join(ids),
        "BIDPLANE_CDI_DEVICES": ",".join(f"nvidia.com/gpu={one}" for one in ids),
    }


def device_status(devices: Sequence[Device], present: Present) -> list[dict[str, Any]]:
    """For the pod's status: what it holds, and whether that is still there."""
    by_claim: dict[str, list[dict[str, Any]]] = {}
    for device in devices:
        health = "Healthy" if device.key in present else "Unhealthy"
        if not is_ours(device, present):
            health = "Unknown"
        one = {"resourceID": f"{device.pool}/{device.device}", "health": health}
        by_claim.setdefault(device.claim, []).append(one)
    return [{"name": f"claim:{claim}", "resources": known} for claim, known in by_claim.items()]
