"""
A recording of a cluster as it is now, watched for a time. Only get, list and watch are used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from bidplane.api.kinds import NODE, POD, RESOURCE_CLAIM, RESOURCE_SLICE, Kind, Object
from bidplane.api.objects import name_of, namespace_of, uid_of
from bidplane.core.shadow.model import ClusterRecording, DeviceUse, Gap, NodeGpus, ShadowPod
from bidplane.core.shadow.objects import claim_names, nodes_of, pod_of
from bidplane.errors import ApiError, Gone, NotFound, Unavailable, UserError
from bidplane.kube.client import Listing, WatchingClient
from bidplane.machinery.clock import Clock
from bidplane.shadow.history import HistorySource, UseReader

_RETRY_SECONDS = 1.0
_NEEDED = "pods,nodes,resourceclaims.resource.k8s.io,resourceslices.resource.k8s.io"
_GRANT = f"kubectl create clusterrole bidplane-shadow --verb=get,list,watch --resource={_NEEDED}"
_NO_PROMETHEUS = Gap(
    source="DCGM's series",
    cost="whether GPUs that are held do anything is unknown: name a Prometheus with --prometheus",
)


async def watch_cluster(
    client: WatchingClient,
    name: str,
    *,
    clock: Clock,
    seconds: int,
    step: int,
    resource: str,
    below: float,
    prometheus: HistorySource | None = None,
) -> ClusterRecording:
    """
    Watch a cluster's pods for so many seconds. Raises `UserError` where the account lacks a right,
    or no pod has asked for a GPU.
    """
    view = _ClusterView(resource, clock)
    gaps: list[Gap] = []
    begin = clock.now()
    slices = await _optional(client, RESOURCE_SLICE, gaps, "GPUs of DRA drivers are not counted")
    nodes = nodes_of((await _listed(client, NODE)).items, slices or (), resource=resource)
    watches = []
    claims = await _optional(client, RESOURCE_CLAIM, gaps, "pods with ResourceClaims are missing")
    if claims is not None:
        watches.append(_Watch(client, RESOURCE_CLAIM, view.claim_changed, view.claims_listed))
    watches.append(_Watch(client, POD, view.pod_changed, view.pods_listed))
    await _watch_all(watches, clock, seconds)
    end = clock.now()
    uses: Sequence[DeviceUse] = ()
    if prometheus is None:
        gaps.append(_NO_PROMETHEUS)
    else:
        reader = UseReader(prometheus, step=step, below=below)
        await reader.read(int(begin), int(begin) + max(0, int(end) - int(begin)) // step * step)
        uses = reader.recorder.uses()
        gaps += reader.gaps()
    pods = [pod for pod in view.pods() if pod.ended is None or pod.ended > begin]
    if not pods:
        raise UserError(
            f"{name} has no pod that asks for {resource} or for a ResourceClaim of GPUs; other"
            " resources are named with --resource"
        )
    return ClusterRecording(
        source=name,
        begin=begin,
        end=end,
        step=step,
        nodes=nodes or _nodes_of_pods(pods, gaps),
        pods=pods,
        uses=uses,
        gaps=gaps,
    )


def _nodes_of_pods(pods: Sequence[ShadowPod], gaps: list[Gap]) -> list[NodeGpus]:
    gaps.append(
        Gap(source="GPUs of nodes", cost="no node offers any; the fleet is what pods ask for")
    )
    return [NodeGpus("unknown", sum(pod.gpus for pod in pods))]


class _ClusterView:
    """The pods with GPUs that were seen, and their claims."""

    def __init__(self, resource: str, clock: Clock) -> None:
        self._resource, self._clock = resource, clock
        self._pods: dict[str, ShadowPod] = {}  # by uid
        self._there: set[str] = set()
        self._claims: dict[tuple[str, str], Object] = {}
        self._claiming: dict[str, Object] = {}  # pods that use claims, by uid

    def pods(self) -> list[ShadowPod]:
        return sorted(self._pods.values(), key=lambda p: (p.created, p.namespace, p.name))

    def pods_listed(self, pods: Sequence[Object]) -> None:
        listed = {uid_of(pod) for pod in pods}
        for uid in self._there - listed:
            self._end(uid)
        for pod in pods:
            self.pod_changed(pod, is_there=True)

    def pod_changed(self, pod: Object, *, is_there: bool) -> None:
        uid = uid_of(pod)
        if any(claim_names(pod)):
            self._claiming[uid] = pod
        self._note(uid, pod)
        if is_there:
            self._there.add(uid)
        else:
            self._end(uid)

    def claims_listed(self, claims: Sequence[Object]) -> None:
        for claim in claims:
            self.claim_changed(claim, is_there=True)

    def claim_changed(self, claim: Object, *, is_there: bool) -> None:
        key = (namespace_of(claim), name_of(claim))
        if is_there:
            self._claims[key] = claim
        for uid, pod in self._claiming.items():
            if namespace_of(pod) == key[0] and key[1] in claim_names(pod):
                self._note(uid, pod)
        if not is_there:
            self._claims.pop(key, None)

    def _note(self, uid: str, pod: Object) -> None:
        """Take a pod's present state; what it once had, it had."""
        now = pod_of(pod, self._claims, resource=self._resource)
        before = self._pods.get(uid)
        if now is None or before is None:
            if now is not None:
                self._pods[uid] = now
            return
        self._pods[uid] = msgspec.structs.replace(
            now,
            gpus=max(now.gpus, before.gpus),
            scheduled=before.scheduled if now.scheduled is None else now.scheduled,
            ended=before.ended if now.ended is None else now.ended,
        )

    def _end(self, uid: str) -> None:
        """Note that a pod is gone."""
        self._there.discard(uid)
        self._claiming.pop(uid, None)
        pod = self._pods.get(uid)
        if pod is not None and pod.ended is None:
            self._pods[uid] = msgspec.structs.replace(pod, ended=self._clock.now())


class _Watch:
    """A list of one kind, then its changes."""

    def __init__(
        self,
        client: WatchingClient,
        kind: Kind,
        changed: Callable[..., None],
        listed: Callable[[Sequence[Object]], None],
    ) -> None:
        self._client, self._kind = client, kind
        self._changed, self._listed = changed, listed
        self._version = ""

    async def begin(self) -> None:
        listing = await _listed(self._client, self._kind)
        self._listed(listing.items)
        self._version = listing.resource_version

    async def follow(self, clock: Clock) -> None:
        """Take over changes for ever; a watch that breaks off is begun again."""
        while True:
            try:
                async for event in self._client.watch(self._kind, resource_version=self._version):
                    self._version = event.object["metadata"]["resourceVersion"]
                    if event.type != "BOOKMARK":
                        self._changed(event.object, is_there=event.type != "DELETED")
            except Gone:
                await self.begin()
            except Unavailable:
                await clock.sleep(_RETRY_SECONDS)
            except ApiError as error:
                raise _refused("watch", self._kind, error) from error


async def _watch_all(watches: Sequence[_Watch], clock: Clock, seconds: int) -> None:
    """Follow several kinds until the time is over."""
    for watch in watches:
        await watch.begin()
    end = asyncio.ensure_future(clock.sleep(seconds))
    following = [asyncio.ensure_future(watch.follow(clock)) for watch in watches]
    try:
        await asyncio.wait([end, *following], return_when=asyncio.FIRST_COMPLETED)
        for task in following:
            if task.done():
                task.result()  # raises: a watch has no other end
    finally:
        for task in (end, *following):
            task.cancel()
        await asyncio.gather(end, *following, return_exceptions=True)


async def _optional(
    client: WatchingClient, kind: Kind, gaps: list[Gap], cost: str
) -> Sequence[Object] | None:
    """Return a kind's objects; None where they are not served or may not be listed."""
    try:
        return (await client.list(kind)).items
    except NotFound:
        return None  # a cluster without DRA
    except Unavailable:
        raise
    except ApiError as error:
        gaps.append(Gap(source=f"list {_name(kind)}", cost=f"{cost}: {error}"))
        return None


async def _listed(client: WatchingClient, kind: Kind) -> Listing:
    try:
        return await client.list(kind)
    except Unavailable:
        raise
    except ApiError as error:
        raise _refused("list", kind, error) from error


def _name(kind: Kind) -> str:
    return f"{kind.plural}.{kind.group}" if kind.group else kind.plural


def _refused(verb: str, kind: Kind, error: ApiError) -> UserError:
    return UserError(
        f"the account may not {verb} {_name(kind)} in all namespaces ({error}). It needs get, list"
        f" and watch, as by `{_GRANT}` and a ClusterRoleBinding to it"
    )
