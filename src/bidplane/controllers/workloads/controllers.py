"""The workload controllers, in one list."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from bidplane.api.kinds import (
    CONFIG_MAP,
    CONTROLLER_REVISION,
    CRON_JOB,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    ENDPOINT_SLICE,
    ENDPOINTS,
    JOB,
    NODE,
    POD,
    REPLICA_SET,
    RESOURCE_QUOTA,
    SECRET,
    SERVICE,
    STATEFUL_SET,
    VOLUME_CLAIM,
    Kind,
    Object,
)
from bidplane.api.objects import controller_of, labels_of, metadata_of
from bidplane.controllers.workloads.execution import CreationRefused
from bidplane.controllers.workloads.reconciler import Key, Reconciler, Sites
from bidplane.controllers.workloads.volumeclaims import VolumeClaims
from bidplane.core.workloads import (
    budgets,
    cronjobs,
    deployments,
    endpoints,
    endpointslices,
    jobs,
    quotas,
    replicasets,
    statefulsets,
)
from bidplane.core.workloads.plan import WorkloadPlan
from bidplane.errors import AlreadyExists, NotFound
from bidplane.kube.client import EventType
from bidplane.machinery.clock import Clock
from bidplane.machinery.controller import Controller
from bidplane.machinery.planes import PlaneCache

# The kinds that these controllers watch in every plane.
KINDS = (
    POD,
    NODE,
    DEPLOYMENT,
    REPLICA_SET,
    STATEFUL_SET,
    CONTROLLER_REVISION,
    JOB,
    CRON_JOB,
    SERVICE,
    ENDPOINT_SLICE,
    VOLUME_CLAIM,
    RESOURCE_QUOTA,
    DISRUPTION_BUDGET,
)
_COUNTED = (POD, SERVICE, VOLUME_CLAIM, DEPLOYMENT, REPLICA_SET, STATEFUL_SET, JOB, CRON_JOB)
_LISTED = (CONFIG_MAP, SECRET)  # counted, but not worth watching: see `Quotas`
_RECOUNT_SECONDS = 10.0
_REFUSED_SECONDS = 5.0  # before a refused creation is tried again


class ReplicaSets(Reconciler):
    """The ReplicaSet controller."""

    kind, dependents, component = REPLICA_SET, (POD,), "replicaset-controller"

    async def reconcile_object(self, cache: PlaneCache, obj: Object) -> float | None:
        pods = cache[POD].in_namespace(metadata_of(obj)["namespace"])
        plan = replicasets.plan(obj, pods, now=self.clock.now())
        try:
            return await self.carrier.carry_out(cache.client, plan)
        except CreationRefused as refused:
            now = self.clock.now()
            failed = replicasets.plan(obj, pods, now=now, refused=str(refused.error))
            await self.carrier.carry_out(cache.client, WorkloadPlan(status=failed.status))
            return _REFUSED_SECONDS


class Deployments(Reconciler):
    """The Deployment controller."""

    kind, dependents, component = DEPLOYMENT, (REPLICA_SET,), "deployment-controller"

    def __init__(self, sites: Sites, *, clock: Clock) -> None:
        super().__init__(sites, clock=clock)
        sites.on_change(POD, self._pod_ended)

    def _pod_ended(self, plane: str, event: EventType, pod: Object) -> None:
        """
        Reconcile the Deployment of an ended pod: the Recreate strategy waits for the old pods.
        """
        owner, cache = controller_of(pod), self.sites.get(plane)
        if event != "DELETED" or owner is None or owner["kind"] != "ReplicaSet" or cache is None:
            return
        replica_set = cache[REPLICA_SET].get(metadata_of(pod)["namespace"], owner["name"])
        if replica_set is not None:
            self._dependent_changed(plane, "MODIFIED", replica_set)

    async def reconcile_object(self, cache: PlaneCache, obj: Object) -> float | None:
        namespace = metadata_of(obj)["namespace"]
        plan = deployments.plan(
            obj,
            cache[REPLICA_SET].in_namespace(namespace),
            cache[POD].in_namespace(namespace),
            now=self.clock.now(),
        )
        try:
            return await self.carrier.carry_out(cache.client, plan)
        except AlreadyExists:
            await self._settle_name(cache, obj, plan)
            raise

    async def _settle_name(self, cache: PlaneCache, obj: Object, plan: WorkloadPlan) -> None:
        """
        Handle a taken ReplicaSet name: count a collision, unless our own cache was only behind.
        """
        for name in deployments.created(plan):
            with suppress(NotFound):
                existing = await cache.client.get(REPLICA_SET, name, metadata_of(obj)["namespace"])
                if deployments.collided(obj, existing):
                    await self.carrier.carry_out(
                        cache.client, WorkloadPlan(status=deployments.collision(obj))
                    )


class StatefulSets(Reconciler):
    """The StatefulSet controller."""

    kind, dependents = STATEFUL_SET, (POD, CONTROLLER_REVISION)
    component = "statefulset-controller"

    async def reconcile_object(self, cache: PlaneCache, obj: Object) -> float | None:
        namespace = metadata_of(obj)["namespace"]
        plan = statefulsets.plan(
            obj,
            cache[CONTROLLER_REVISION].in_namespace(namespace),
            cache[POD].in_namespace(namespace),
            cache[VOLUME_CLAIM].in_namespace(namespace),
            now=self.clock.now(),
        )
        try:
            return await self.carrier.carry_out(cache.client, plan)
        except CreationRefused:
            return _REFUSED_SECONDS


class Jobs(Reconciler):
    """The Job controller."""

    kind, dependents, component = JOB, (POD,), "job-controller"

    async def reconcile_object(self, cache: PlaneCache, obj: Object) -> float | None:
        pods = cache[POD].in_namespace(metadata_of(obj)["namespace"])
        plan = jobs.plan(obj, pods, now=self.clock.now())
        try:
            return await self.carrier.carry_out(cache.client, plan)
        except CreationRefused:
            return _REFUSED_SECONDS

    async def clean_up(self, cache: PlaneCache, namespace: str, name: str) -> None:
        """
        Remove the tracking finalizer from the pods of a deleted Job, which nobody counts any more.
        """
        for pod in cache[POD].in_namespace(namespace):
            owner = controller_of(pod)
            is_ours = owner is not None and (owner["kind"], owner["name"]) == ("Job", name)
            if is_ours and jobs.TRACKING in (metadata_of(pod).get("finalizers") or ()):
                with suppress(NotFound):
                    await self.carrier.carry_out(
                        cache.client, WorkloadPlan(operations=[jobs.release(pod)])
                    )


class CronJobs(Reconciler):
    """The CronJob controller."""

    kind, dependents, component = CRON_JOB, (JOB,), "cronjob-controller"

    async def reconcile_object(self, cache: PlaneCache, obj: Object) -> float | None:
        plan = cronjobs.plan(
            obj, cache[JOB].in_namespace(metadata_of(obj)["namespace"]), now=self.clock.now()
        )
        try:
            return await self.carrier.carry_out(cache.client, plan)
        except CreationRefused:
            return _REFUSED_SECONDS

    def _dependent_changed(self, plane: str, event: EventType, obj: Object) -> None:
        if controller_of(obj) is not None:  # a CronJob adopts nothing: it has no selector
            super()._dependent_changed(plane, event, obj)


class EndpointSlices(Reconciler):
    """The controller of EndpointSlices and Endpoints."""

    kind, component = SERVICE, "endpoint-slice-controller"

    def __init__(self, sites: Sites, *, clock: Clock) -> None:
        super().__init__(sites, clock=clock)
        sites.on_change(POD, self._pod_changed)
        sites.on_change(ENDPOINT_SLICE, self._slice_changed)

    async def reconcile_object(self, cache: PlaneCache, obj: Object) -> float | None:
        namespace = metadata_of(obj)["namespace"]
        nodes = {str(metadata_of(node)["name"]) for node in cache[NODE].items()}
        plan = endpointslices.plan(
            obj,
            cache[POD].in_namespace(namespace),
            cache[ENDPOINT_SLICE].in_namespace(namespace),
            nodes,
        )
        await self.carrier.carry_out(cache.client, plan)
        # Read each time, not watched: only we write it, and few clients read it.
        existing = None
        with suppress(NotFound):
            existing = await cache.client.get(ENDPOINTS, metadata_of(obj)["name"], namespace)
        pods = cache[POD].in_namespace(namespace)
        if (operation := endpoints.operation(obj, pods, nodes, existing)) is not None:
            return await self.carrier.carry_out(cache.client, WorkloadPlan(operations=[operation]))
        return None

    async def clean_up(self, cache: PlaneCache, namespace: str, name: str) -> None:
        """Delete the Endpoints that we wrote for a deleted Service."""
        with suppress(NotFound):
            existing = await cache.client.get(ENDPOINTS, name, namespace)
            if labels_of(existing).get(endpoints.MANAGED_BY) == endpoints.OURS:
                await cache.client.delete(
                    ENDPOINTS, name, namespace, uid=metadata_of(existing)["uid"]
                )

    def _pod_changed(self, plane: str, event: EventType, pod: Object) -> None:
        cache = self.sites.get(plane)
        namespace = metadata_of(pod)["namespace"]
        services = cache[SERVICE].in_namespace(namespace) if cache is not None else ()
        for service in services:
            selector = service["spec"].get("selector")
            # A modified pod may have left the Service by a change of labels.
            if selector and (selector.items() <= labels_of(pod).items() or event == "MODIFIED"):
                self.controller.add((plane, namespace, metadata_of(service)["name"]))

    def _slice_changed(self, plane: str, event: EventType, slice_: Object) -> None:
        name = labels_of(slice_).get(endpointslices.SERVICE_NAME)
        if name and labels_of(slice_).get(endpointslices.MANAGED_BY) == endpointslices.OURS:
            self.controller.add((plane, metadata_of(slice_)["namespace"], name))


class Quotas(Reconciler):
    """
    Keeps `status.used`; the API server enforces the limits.

    ConfigMaps and Secrets are many and rarely limited: they are listed only when a quota names
    them, and again after a while.
    """

    kind, component = RESOURCE_QUOTA, "resourcequota-controller"

    def __init__(self, sites: Sites, *, clock: Clock) -> None:
        super().__init__(sites, clock=clock)
        for kind in _COUNTED:
            sites.on_change(kind, self._counted_changed)

    def _counted_changed(self, plane: str, event: EventType, obj: Object) -> None:
        """Reconcile the quotas in a changed object's namespace."""
        cache = self.sites.get(plane)
        namespace = metadata_of(obj)["namespace"]
        for quota in cache[RESOURCE_QUOTA].in_namespace(namespace) if cache is not None else ():
            self.controller.add((plane, namespace, metadata_of(quota)["name"]))

    async def reconcile_object(self, cache: PlaneCache, obj: Object) -> float | None:
        namespace = metadata_of(obj)["namespace"]
        objects: dict[Kind, list[Object]] = {
            kind: cache[kind].in_namespace(namespace) for kind in _COUNTED
        }
        hard: Mapping[str, str] = obj["spec"].get("hard") or {}
        listed = [k for k in _LISTED if any(k.plural in name for name in hard)]
        for kind in listed:
            objects[kind] = list((await cache.client.list(kind, namespace)).items)
        await self.carrier.carry_out(cache.client, quotas.plan(obj, objects))
        return _RECOUNT_SECONDS if listed else None


class Budgets(Reconciler):
    """Keeps the number of pods that may be evicted; the API server grants evictions."""

    kind, component = DISRUPTION_BUDGET, "controllermanager"
    _scaled = (DEPLOYMENT, REPLICA_SET, STATEFUL_SET)

    def __init__(self, sites: Sites, *, clock: Clock) -> None:
        super().__init__(sites, clock=clock)
        for kind in (POD, *self._scaled):
            sites.on_change(kind, self._counted_changed)

    def _counted_changed(self, plane: str, event: EventType, obj: Object) -> None:
        """Reconcile the budgets in a changed object's namespace."""
        cache = self.sites.get(plane)
        namespace = metadata_of(obj)["namespace"]
        for budget in cache[self.kind].in_namespace(namespace) if cache is not None else ():
            self.controller.add((plane, namespace, metadata_of(budget)["name"]))

    async def reconcile_object(self, cache: PlaneCache, obj: Object) -> float | None:
        namespace = metadata_of(obj)["namespace"]
        owners = {
            (kind.kind, str(metadata_of(owner)["name"])): owner
            for kind in self._scaled
            for owner in cache[kind].in_namespace(namespace)
        }
        pods = cache[POD].in_namespace(namespace)
        plan = budgets.plan(obj, pods, owners, now=self.clock.now())
        return await self.carrier.carry_out(cache.client, plan)


class Workloads:
    """All workload controllers, ready to run."""

    def __init__(self, sites: Sites, *, clock: Clock) -> None:
        reconcilers: list[Reconciler] = [
            Deployments(sites, clock=clock),
            ReplicaSets(sites, clock=clock),
            StatefulSets(sites, clock=clock),
            Jobs(sites, clock=clock),
            CronJobs(sites, clock=clock),
            EndpointSlices(sites, clock=clock),
            Quotas(sites, clock=clock),
            Budgets(sites, clock=clock),
            VolumeClaims(sites, clock=clock),
        ]
        self.controllers: list[Controller[Key]] = [r.controller for r in reconcilers]
