"""
The endpoint controller: a plane's Endpoints on the host, and the demand of their traffic in the
plane.

The activator reads the host's copies and writes its demand there. So a plane may sleep until its
service is to wake: then the copy's demand has no answer, and the plane is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import msgspec

from bidplane.api import labels
from bidplane.api.agent import AgentSpec, host_namespace
from bidplane.api.endpoint import (
    Backend,
    Demand,
    EndpointPhase,
    EndpointSpec,
    EndpointStatus,
    Urgency,
)
from bidplane.api.kinds import (
    BID,
    DEPLOYMENT,
    ENDPOINT,
    ENDPOINT_SLICE,
    POD,
    SERVICE,
    Draft,
    Object,
)
from bidplane.api.objects import annotations_of, condition_of, labels_of, metadata_of
from bidplane.api.reading import Agent, Bid, Endpoint, GPULease, read_bid
from bidplane.api.views import KubeObject, Pod, read_pod
from bidplane.controllers.endpoint import requests
from bidplane.controllers.endpoint.keeping import LeaseKeeper, change_bid
from bidplane.controllers.endpoint.scaling import ReplicaScaler, delete_pods, mark_for_deletion
from bidplane.controllers.endpoint.wakeauth import sooner, wake_digest
from bidplane.core.activation import coldstart, lifecycle, warmpath
from bidplane.core.activation.hostassignment import DEFAULT_DOMAIN, HostAssignment, assign_hosts
from bidplane.core.activation.lifecycle import EndpointPlan, Observed
from bidplane.core.activation.warmpath import ActivatorAddress
from bidplane.core.hosting import translation
from bidplane.core.idling import keeping
from bidplane.errors import NotFound
from bidplane.kube.client import EventType
from bidplane.machinery.clock import Clock
from bidplane.machinery.controller import Controller
from bidplane.machinery.planes import PlaneCache, PlaneCaches
from bidplane.wire.patches.jsonpatch import merge_change

Key = tuple[str, str, str]  # agent, and the plane's namespace and name


class EndpointController:
    """Copies Endpoints to the host, and scales their targets."""

    def __init__(
        self,
        host: PlaneCache,
        planes: PlaneCaches,
        *,
        clock: Clock,
        domain: str = DEFAULT_DOMAIN,
        activator: ActivatorAddress | None = None,
    ) -> None:
        """`activator` is where gateways send requests for a service that does not serve."""
        self._host, self._planes, self._domain = host, planes, domain
        self._clock, self._scaler = clock, ReplicaScaler(clock)
        self._activator = activator
        self._keeper = LeaseKeeper(host)
        self._assignments: Mapping[str, HostAssignment] | None = (
            None  # None: an Endpoint or Agent changed
        )
        self._specs: dict[str, EndpointSpec] = {}  # by uid, those that the assignments are of
        self.controller: Controller[Key] = Controller("endpoints", self.reconcile)
        planes.on_change(ENDPOINT, self._changed, read=KubeObject)
        planes.on_change(POD, self._pod_changed, read=read_pod)
        planes.on_change(DEPLOYMENT, self._target_changed, read=KubeObject)
        planes.on_change(SERVICE, self._target_changed, read=KubeObject)
        planes.on_change(BID, self._bid_changed, read=read_bid)
        planes.on_open(self._opened)
        host.leases.on_change(self._lease_changed)
        host.endpoints.on_change(self._copy_changed)
        host.agents.on_change(self._agent_changed)

    # Changes.

    def _changed(self, plane: str, event: EventType, endpoint: KubeObject) -> None:
        self.controller.add((plane, endpoint.namespace, endpoint.name))

    def _pod_changed(self, plane: str, event: EventType, pod: Pod) -> None:
        self._add_namespace(plane, pod.namespace)

    def _target_changed(self, plane: str, event: EventType, target: KubeObject) -> None:
        self._add_namespace(plane, target.namespace)

    def _bid_changed(self, plane: str, event: EventType, bid: Bid) -> None:
        if bid.name.startswith(keeping.bid_name("")):
            self._add_namespace(plane, bid.namespace)

    def _lease_changed(self, event: EventType, lease: GPULease) -> None:
        """Reconcile the Endpoints that may hold a lease: it may cost less, or have gone."""
        for copy in self._host.endpoints.in_namespace(lease.namespace):
            self._add_copy(copy)

    def _add_namespace(self, plane: str, namespace: str) -> None:
        """Reconcile the Endpoints of a namespace: few planes have any."""
        cache = self._planes.awake(plane)
        for endpoint in cache.endpoints.in_namespace(namespace) if cache is not None else ():
            self.controller.add((plane, namespace, endpoint.name))

    def _opened(self, plane: str) -> None:
        """Reconcile all copies of a plane: an original may have gone while we did not run."""
        for copy in self._host.endpoints.items():
            if copy.labels.get(labels.AGENT) == plane:
                self._add_copy(copy)

    def _copy_changed(self, event: EventType, copy: Endpoint) -> None:
        self._add_copy(copy)
        if event == "DELETED":
            self._specs.pop(copy.uid, None)
            self._scaler.forget(copy.uid)
        elif self._specs.get(copy.uid) == copy.spec:
            return  # only its status
        else:
            self._specs[copy.uid] = copy.spec
        self._assign_again()  # a name may be free, or taken, now

    def _agent_changed(self, event: EventType, agent: Agent) -> None:
        self._assign_again()

    def _assign_again(self) -> None:
        """Decide again which Endpoint has which names."""
        self._assignments = None
        for copy in self._host.endpoints.items():
            self._add_copy(copy)

    def _add_copy(self, copy: Endpoint) -> None:
        original = translation.origin(copy.json)
        agent = copy.labels.get(labels.AGENT)
        if original is not None and agent is not None:
            self.controller.add((agent, *original))

    # The work.

    async def reconcile(self, key: Key) -> float | None:
        """Make one Endpoint equal on both sides, and take the next step of its target."""
        agent, namespace, name = key
        copy = _view(
            self._host[ENDPOINT].get(host_namespace(agent), translation.host_name(namespace, name))
        )
        plane = self._plane(agent, copy)
        if plane is None:
            return None
        original = _view(plane[ENDPOINT].get(namespace, name))
        if copy is not None and not translation.is_copy_of(copy, original):
            await self._delete(copy)
        elif original is not None and copy is None:
            await self._create(agent, original)
        elif original is not None and copy is not None:
            if copy.spec != original.spec:
                await self._copy_spec(copy, original)
            else:
                return await self._step(plane, original, copy)
        return None

    def _plane(self, agent: str, copy: KubeObject | None) -> PlaneCache | None:
        """Return the agent's plane; a sleeping one is woken only if there is something to do."""
        plane = self._planes.awake(agent)
        if plane is not None or copy is None:
            return plane
        endpoint = self._host.endpoints.get(copy.namespace, copy.name)
        return self._planes.get(agent) if endpoint is not None and is_unanswered(endpoint) else None

    async def _delete(self, copy: KubeObject) -> None:
        if not copy.is_deleted:
            with suppress(NotFound):
                await self._host.client.delete(ENDPOINT, copy.name, copy.namespace, uid=copy.uid)

    async def _create(self, agent: str, original: KubeObject) -> None:
        if original.is_deleted:
            return
        copy = {
            "apiVersion": ENDPOINT.api_version,
            "kind": ENDPOINT.kind,
            "metadata": translation.host_metadata(agent, original),
            "spec": original.spec,
        }
        await self._host.client.create(ENDPOINT, copy, host_namespace(agent))

    async def _copy_spec(self, copy: KubeObject, original: KubeObject) -> None:
        change = {"spec": merge_change(copy.spec, original.spec)}
        await self._host.client.patch(ENDPOINT, copy.name, change, copy.namespace)

    async def _step(
        self, plane: PlaneCache, original: KubeObject, copy: KubeObject
    ) -> float | None:
        endpoint = self._host.endpoints.get(copy.namespace, copy.name)
        if endpoint is None:  # of another version; it says so in the log
            return None
        observed = self._observe(plane, original.namespace, endpoint.spec)
        previous = endpoint.status or EndpointStatus()
        if requests.is_asked(endpoint):
            await requests.carry(self._host.client, plane.client, endpoint, observed.deployment)
            return None
        step = lifecycle.plan(endpoint.spec, self._assignment(endpoint), observed, previous)
        scaling = self._scaler.plan(endpoint, observed, step)
        bid, bid_change, holding = self._keeper.look(plane, original, endpoint, observed)
        status = msgspec.structs.replace(
            scaling.step.status,
            gpus=requests.template_gpus(observed.deployment),
            wake_digest=await wake_digest(plane, original.namespace, endpoint),
            holding=holding,
            fallbacks=self._fallbacks(plane, original.namespace, endpoint.spec),
        )
        planned = msgspec.structs.replace(scaling.step, status=status)
        step = self._with_milestones(planned, observed)
        # The status first: the activator stops using pods before they are deleted.
        if endpoint.status is None or step.status != previous:
            await self._write_status(endpoint, step.status)
        await change_bid(plane, bid, bid_change)
        await self._lead_to_activator(plane, original, endpoint.spec, observed, step.status)
        await mark_for_deletion(plane, original.namespace, scaling.going)
        if step.replicas is not None and observed.deployment is not None:
            has_bid = bid is not None or bid_change.create is not None
            target = KubeObject(observed.deployment)
            await self._scale(plane, target, endpoint, step.replicas, has_bid=has_bid)
        await delete_pods(plane, original.namespace, scaling.delete)
        # Not the digest: the token might be guessed from it.
        public = msgspec.structs.replace(step.status, wake_digest="")
        mirrored = {**_own_part(public), "demand": msgspec.to_builtins(previous.demand)}
        if previous.cold_start is not None:
            mirrored["coldStart"] = msgspec.to_builtins(previous.cold_start)
        if previous.ladder is not None:
            mirrored["ladder"] = msgspec.to_builtins(previous.ladder)
        current = original.status
        if any(current.get(field) != value for field, value in mirrored.items()):
            with suppress(NotFound):
                await plane.client.patch(
                    ENDPOINT,
                    original.name,
                    {"status": mirrored},
                    original.namespace,
                    subresource="status",
                )
        return sooner(scaling.again_after, endpoint)

    def _fallbacks(
        self, plane: PlaneCache, namespace: str, spec: EndpointSpec
    ) -> tuple[Backend, ...]:
        """Return the pods of an Endpoint's fallback that serve now."""
        fallback = lifecycle.fallback_spec(spec)
        if fallback is None:
            return ()
        return lifecycle.live_backends(fallback, self._observe(plane, namespace, fallback))

    def _with_milestones(self, step: EndpointPlan, observed: Observed) -> EndpointPlan:
        """Note what the pods of the demand have reached, if they are to serve it."""
        status, demand = step.status, step.status.demand
        if status.phase not in (EndpointPhase.WAKING, EndpointPhase.READY) or demand is None:
            return step
        milestones = coldstart.passed(
            status.milestones,
            demand.number,
            [pod for pod in observed.pods if not pod.is_deleted and not pod.has_ended],
            observed.addresses,
            now=self._clock.now(),
        )
        return msgspec.structs.replace(
            step, status=msgspec.structs.replace(status, milestones=milestones)
        )

    async def _lead_to_activator(
        self,
        plane: PlaneCache,
        original: KubeObject,
        spec: EndpointSpec,
        observed: Observed,
        status: EndpointStatus,
    ) -> None:
        """Make the slice right that leads requests to the activator while no pod serves."""
        desired = warmpath.activator_slice(
            original.json, spec, observed.service, status.phase, self._activator
        )
        name, namespace = warmpath.slice_name(original.name), original.namespace
        current = plane[ENDPOINT_SLICE].get(namespace, name)
        if current is not None and (desired is None or _is_immutable_changed(current, desired)):
            with suppress(NotFound):
                await plane.client.delete(ENDPOINT_SLICE, name, namespace)
            current = None
        if desired is None:
            return
        if current is None:
            await plane.client.create(ENDPOINT_SLICE, desired, namespace)
        elif any(current.get(field) != desired[field] for field in ("endpoints", "ports")):
            await plane.client.patch(ENDPOINT_SLICE, name, desired, namespace)

    async def _write_status(self, endpoint: Endpoint, status: EndpointStatus) -> None:
        """Write our part; the rest is the activators'."""
        await self._host.client.patch(
            ENDPOINT,
            endpoint.name,
            {"status": _own_part(status)},
            endpoint.namespace,
            subresource="status",
        )

    def _observe(self, plane: PlaneCache, namespace: str, spec: EndpointSpec) -> Observed:
        deployment = plane[DEPLOYMENT].get(namespace, spec.target.deployment)
        service = plane[SERVICE].get(namespace, spec.target.service)
        selector = (service["spec"].get("selector") or {}) if service is not None else {}
        pods = [
            pod
            for pod in plane.pods.in_namespace(namespace)
            if selector and selector.items() <= labels_of(pod).items()
        ]
        failure = condition_of(deployment, "ReplicaFailure") if deployment is not None else None
        return Observed(
            deployment=deployment,
            service=service,
            pods=pods,
            addresses={pod.name: self._address(plane.name, pod) for pod in pods},
            pod_failure=str(failure.get("message", "")) if failure is not None else "",
        )

    def _address(self, agent: str, pod: Pod) -> str:
        """Return the address of a pod as its node reports it; "" before it has one."""
        name = translation.host_name(pod.namespace, pod.name)
        host_pod = self._host.pods.get(host_namespace(agent), name)
        if host_pod is None or not translation.is_copy_of(host_pod, pod):
            return ""
        address: str = host_pod.status.get("podIP") or ""
        return address

    async def _scale(
        self,
        plane: PlaneCache,
        deployment: KubeObject,
        endpoint: Endpoint,
        replicas: int,
        *,
        has_bid: bool,
    ) -> None:
        """Set the replicas; with the first of them how its pods bid: urgency, term, and by whom."""
        spec = endpoint.spec
        change: Draft = {"replicas": replicas}
        annotations = annotations_of({"metadata": {}, **(deployment.spec.get("template") or {})})
        name = endpoint.annotations.get(labels.PLANE_NAME, endpoint.name)
        added = keeping.template_note(spec, name, dict(annotations), has_bid=has_bid)
        if annotations.get(labels.URGENCY) not in tuple(Urgency):
            added[labels.URGENCY] = spec.urgency.value
        if spec.stay_seconds and labels.TERM not in annotations:
            added[labels.TERM] = str(spec.stay_seconds)
        if replicas and added:
            change["template"] = {"metadata": {"annotations": added}}
        await plane.client.patch(
            DEPLOYMENT, deployment.name, {"spec": change}, deployment.namespace
        )

    def _assignment(self, endpoint: Endpoint) -> HostAssignment:
        if self._assignments is None:
            agents: dict[str, AgentSpec] = {
                agent.name: agent.spec for agent in self._host.agents.items()
            }
            self._assignments = assign_hosts(self._host.endpoints.items(), agents, self._domain)
        return self._assignments.get(
            endpoint.uid, HostAssignment(reason="NoAgent", message="its agent is being deleted")
        )


def _view(obj: Object | None) -> KubeObject | None:
    return KubeObject(obj) if obj is not None else None


def _is_immutable_changed(current: Object, desired: Draft) -> bool:
    metadata, wanted = metadata_of(current), desired["metadata"]
    return bool(
        current.get("addressType") != desired["addressType"]
        or metadata.get("ownerReferences") != wanted["ownerReferences"]
        or metadata.get("labels") != wanted["labels"]
    )


def is_unanswered(endpoint: Endpoint) -> bool:
    """Tell if the traffic asks for something that the plane does not know of yet."""
    status = endpoint.status
    if requests.is_asked(endpoint):
        return True
    demand: Demand | None = status.demand if status is not None else None
    return status is None or (demand is not None and demand.number != status.answers)


_ACTIVATORS = ("demand", "coldStart", "activators", "ladder")


def _own_part(status: EndpointStatus) -> Draft:
    """Return the fields of a status that this controller writes."""
    fields: Draft = msgspec.to_builtins(status)
    return {key: fields[key] for key in fields if key not in _ACTIVATORS}
