"""The needs of a pod before it can start: referenced objects, tokens, devices, volumes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgspec

from bidplane.api import labels
from bidplane.api.kinds import (
    CONFIG_MAP,
    NAMESPACE,
    PERSISTENT_VOLUME,
    RESOURCE_CLAIM,
    VOLUME_CLAIM,
)
from bidplane.api.times import parse_rfc3339
from bidplane.core.hosting.references import TokenWish, references, wishes_of
from bidplane.core.hosting.translation import origin
from bidplane.core.pods import spec as specs
from bidplane.core.pods.environment import ConfigError, Facts, Sources
from bidplane.core.pods.files import MADE_FROM_OBJECTS, files
from bidplane.errors import ApiError, NotFound, UserError
from bidplane.kube.client import KubeClient, Object
from bidplane.machinery.clock import Clock
from bidplane.node.inventory import claimstatus
from bidplane.node.inventory.partitions import Partitions
from bidplane.node.process.records import PodFolder
from bidplane.node.process.volumes import mounts
from bidplane.node.process.volumes.mounts import Declared, VolumeSource

_UID = re.compile(r"[A-Za-z0-9-]{1,64}")
_RENEW_AT = 0.8  # of a token's life, as the kubelet does


Present = Mapping[tuple[str, str, str], str]  # the node's devices, and their UUIDs


class TokenClient(Protocol):
    async def request_token(self, namespace: str, account: str, request: Object) -> Object:
        """Return the TokenRequest with its token."""


class ClaimedDevice(msgspec.Struct, frozen=True):
    claim: str  # its name in the pod
    request: str
    driver: str
    pool: str
    device: str
    uuid: str = ""  # of a MIG instance that was made for it

    @property
    def key(self) -> tuple[str, str, str]:
        return self.driver, self.pool, self.device


class Supplies:
    """Fetches what pods need: objects, devices, volumes and tokens, for all pods of a node."""

    def __init__(
        self,
        client: KubeClient,
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
        self._token_cache: dict[tuple[str, TokenWish], tuple[str, float]] = {}  # token, renew at

    async def sources(self, pod: Object) -> Sources:
        """Return the ConfigMaps and Secrets that the pod refers to; None for a missing one."""
        maps: dict[str, Object | None] = {}
        secrets: dict[str, Object | None] = {}
        for reference in references(pod):
            objects = maps if reference.kind == CONFIG_MAP else secrets
            try:
                obj = await self._client.get(
                    reference.kind, reference.name, pod["metadata"]["namespace"]
                )
                objects[reference.name] = {**obj, "kind": reference.kind.kind}
            except NotFound:
                objects[reference.name] = None
        return Sources(config_maps=maps, secrets=secrets)

    async def devices(self, pod: Object) -> list[ClaimedDevice]:
        """
        Return the devices allocated to the pod's claims, with their MIG instances created.

        Raises `ConfigError` while a claim is not allocated, or if an instance cannot be created.
        """
        devices: list[ClaimedDevice] = []
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
                # The result of a request with alternatives names it REQUEST/ALTERNATIVE.
                request = result["request"].partition("/")[0]
                devices.append(
                    ClaimedDevice(name, request, result["driver"], result["pool"], result["device"])
                )
        return await self._with_instances(pod["metadata"]["uid"], devices, claims)

    async def _with_instances(
        self, uid: str, devices: list[ClaimedDevice], claims: Sequence[Object]
    ) -> list[ClaimedDevice]:
        keys = [device.key for device in devices]
        if self._partitions is None or not self._partitions.concern(keys):
            return devices
        now = self._clock.now()
        try:
            instances = await self._partitions.take(uid, keys)
        except UserError as error:
            for claim in claims:
                await claimstatus.tell(
                    self._client, claim, {}, failed=keys, problem=str(error), now=now
                )
            raise ConfigError(str(error)) from error
        for claim in claims:
            await claimstatus.tell(self._client, claim, instances, now=now)
        return [
            msgspec.structs.replace(device, uuid=instances[device.key].uuid)
            if device.key in instances
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
    ) -> dict[str, VolumeSource]:
        """Create or find every volume of the pod; raises `ConfigError` that names a missing one."""
        sources_by_name = {}
        for volume in pod["spec"].get("volumes") or ():
            try:
                sources_by_name[volume["name"]] = await self._volume(
                    pod, volume, folder.volumes / volume["name"], sources, facts, owner
                )
            except ConfigError as error:
                raise ConfigError(
                    f'MountVolume.SetUp failed for volume "{volume["name"]}" : {error}'
                ) from error
        return sources_by_name

    async def _volume(
        self,
        pod: Object,
        volume: Object,
        folder: Path,
        sources: Sources,
        facts: Facts,
        owner: int | None,
    ) -> VolumeSource:
        if any(volume.get(kind) is not None for kind in MADE_FROM_OBJECTS):
            tokens = {wish: await self._token(pod, wish) for wish in wishes_of(volume)}
            mounts.write_files(folder, files(pod, volume, sources, facts, tokens), owner)
            return VolumeSource(folder, read_only=True)
        if volume.get("hostPath") is not None:
            return mounts.host_path(volume, self._declared)
        namespace = pod["metadata"]["namespace"]
        if volume.get("persistentVolumeClaim") is not None:
            claim = volume["persistentVolumeClaim"]
            source = await self._claimed(namespace, claim["claimName"])
            read_only = source.read_only or bool(claim.get("readOnly"))
            return msgspec.structs.replace(source, read_only=read_only)
        if volume.get("ephemeral") is not None:
            return await self._claimed(namespace, f"{pod['metadata']['name']}-{volume['name']}")
        return mounts.empty_dir(folder, volume.get("emptyDir") or {}, owner)

    async def _claimed(self, namespace: str, claim: str) -> VolumeSource:
        obj: Object | None = None
        with suppress(NotFound):
            obj = await self._client.get(VOLUME_CLAIM, claim, namespace)
        # For an agent's claim: its name in the agent's plane, which the owner declares.
        name = (origin(obj) or ("", claim))[1] if obj is not None else claim
        declared = self._declared.named(namespace, name)
        if declared is None and self._declared.claims_folder:
            # A claim with a directory of its own need not exist; the namespace's uid names it then.
            uid = await self._namespace_uid(namespace) if obj is None else _claim_uid(obj)
            declared = self._declared.claim(namespace, claim, uid)
        if declared is not None:
            return VolumeSource(Path(declared.path), declared.read_only)
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

    async def _namespace_uid(self, name: str) -> str:
        try:
            return str((await self._client.get(NAMESPACE, name))["metadata"]["uid"])
        except ApiError:
            return ""  # a cluster that lets nodes read no namespaces

    async def _token(self, pod: Object, wish: TokenWish) -> str:
        metadata = pod["metadata"]
        cached = self._token_cache.get((metadata["uid"], wish))
        now = self._clock.now()
        if cached is not None and now < cached[1]:
            return cached[0]
        if self._tokens is None:
            raise ConfigError("this node cannot request service account tokens")
        request: Object = {
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
        self._token_cache[metadata["uid"], wish] = (
            answer["status"]["token"],
            now + _RENEW_AT * (until - now),
        )
        return str(answer["status"]["token"])

    async def release(self, uid: str) -> None:
        """Free the MIG instances and tokens of a pod that has ended."""
        if self._partitions is not None:
            await self._partitions.leave(uid)
        self._token_cache = {
            key: value for key, value in self._token_cache.items() if key[0] != uid
        }


def container_devices(container: Object, devices: Sequence[ClaimedDevice]) -> list[ClaimedDevice]:
    """Return the devices of the claims and requests that a container names."""
    requests = set(specs.container_claims(container))
    return [d for d in devices if (d.claim, "") in requests or (d.claim, d.request) in requests]


def is_lost(device: ClaimedDevice, present: Present) -> bool:
    """Return true if the device is of our driver and is missing from the node's inventory."""
    return is_ours(device, present) and device.key not in present


def is_ours(device: ClaimedDevice, present: Present) -> bool:
    """Return true if the device is a GPU of this node's driver, not a companion device."""
    return not present or any(device.driver == driver for driver, _, _ in present)


def device_variables(ids: Sequence[str], *, gpus: bool) -> dict[str, str]:
    """Return the environment variables that tell a program its GPUs."""
    if not gpus:
        # Nothing was claimed: without these a program would see every GPU of the machine.
        return {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"}
    return {
        "CUDA_VISIBLE_DEVICES": ",".join(ids),
        "NVIDIA_VISIBLE_DEVICES": ",".join(ids),
        "BIDPLANE_CDI_DEVICES": ",".join(f"nvidia.com/gpu={uuid}" for uuid in ids),
    }


def device_status(devices: Sequence[ClaimedDevice], present: Present) -> list[Object]:
    """Return the devices and their health per claim, for the pod's status."""
    by_claim: dict[str, list[Object]] = {}
    for device in devices:
        health = "Healthy" if device.key in present else "Unhealthy"
        if not is_ours(device, present):
            health = "Unknown"
        entry = {"resourceID": f"{device.pool}/{device.device}", "health": health}
        by_claim.setdefault(device.claim, []).append(entry)
    return [
        {"name": f"claim:{claim}", "resources": resources} for claim, resources in by_claim.items()
    ]


def _claim_uid(claim: Object) -> str:
    """Return the uid of a claim; of an agent's claim, the one in its plane."""
    metadata = claim["metadata"]
    uid = (metadata.get("annotations") or {}).get(labels.PLANE_UID) or metadata["uid"]
    if not _UID.fullmatch(uid):
        raise ConfigError(f"{uid!r} is not a uid that a claim may have")
    return str(uid)
