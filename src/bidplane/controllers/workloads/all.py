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
from bidplane.controllers.workloads.carry import Refused
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
from bidplane.core.workloads.common import controller_of, labels_of, meta
from bidplane.core.workloads.plan import Plan
from bidplane.errors import AlreadyExists, NotFound
from bidplane.kube.client import EventType
from bidplane.machinery.clock import Clock
from bidplane.machinery.controller import Controller
from bidplane.machinery.planes import PlaneCache

# What is followed in every plane for them.
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
_ASKED = (CONFIG_MAP, SECRET)  # counted, but not worth following: see `Quotas`
_RECOUNT_SECONDS = 10.0
_REFUSED_SECONDS = 5.0  # before what was refused is tried again


class ReplicaSets(Reconciler):
    kind, dependents, component = REPLICA_SET, (POD,), "replicaset-controller"

    async def look(self, cache: PlaneCache, obj: Object) -> float | None:
        pods = cache[POD].in_namespace(meta(obj)["namespace"])
        plan = replicasets.plan(obj, pods, now=self.clock.now())
        try:
            return await self.carrier.carry_out(cache.client, plan)
        except Refused as refused:
            now = self.clock.now()
            said = replicasets.plan(obj, pods, now=now, refused=str(refused.error))
            await self.carrier.carry_out(cache.client, Plan(status=said.status))
            return _REFUSED_SECONDS


class Deployments(Reconciler):
    kind, dependents, component = DEPLOYMENT, (REPLICA_SET,), "deployment-controller"

    def __init__(self, sites: Sites, *, clock: Clock) -> None:
        super().__init__(sites, clock=clock)
        sites.on_change(POD, self._pod_ended)

    def _pod_ended(self, plane: str, event: EventType, pod: Object) -> None:
        """Recreate waits for the last pod of the old."""
        owner, cache = controller_of(pod), self.sites.get(plane)
        if event != "DELETED" or owner is None or owner["kind"] != "ReplicaSet" or cache is None:
            return
        replica_set = cache[REPLICA_SET].get(meta(pod)["namespace"], owner["name"])
        if replica_set is not None:
            self._dependent_changed(plane, "MODIFIED", replica_set)

    async def look(self, cache: PlaneCache, obj: Object) -> float | None:
        namespace = meta(obj)["namespace"]
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

    async def _settle_name(self, cache: PlaneCache, obj: Object, plan: Plan) -> None:
        """Our hash is taken: by the very ReplicaSet our cache has not seen, or by another's."""
        for name in deployments.created(plan):
            with suppress(NotFound):
                found = await cache.client.get(REPLICA_SET, name, meta(obj)["namespace"])
                if deployments.collided(obj, found):
                    await self.carrier.carry_out(
                        cache.client, Plan(status=deployments.collision(obj))
                    )


class StatefulSets(Reconciler):
    kind, dependents = STATEFUL_SET, (POD, CONTROLLER_REVISION)
    component = "statefulset-controller"

    async def look(self, cache: PlaneCache, obj: Object) -> float | None:
        namespace = meta(obj)["namespace"]
        plan = statefulsets.plan(
            obj,
            cache[CONTROLLER_REVISION].in_namespace(namespace),
            cache[POD].in_namespace(namespace),
            cache[VOLUME_CLAIM].in_namespace(namespace),
            now=self.clock.now(),
        )
        try:
            return await self.carrier.carry_out(cache.client, plan)
        except Refused:
            return _REFUSED_SECONDS


class Jobs(Reconciler):
    kind, dependents, component = JOB, (POD,), "job-controller"

    async def look(self, cache: PlaneCache, obj: Object) -> float | None:
        pods = cache[POD].in_namespace(meta(obj)["namespace"])
        plan = jobs.plan(obj, pods, now=self.clock.now())
        try:
            return await self.carrier.carry_out(cache.client, plan)
        except Refused:
            return _REFUSED_SECONDS

    async def gone(self, cache: PlaneCache, namespace: str, name: str) -> None:
        """Its pods wait for us to count them; nobody will."""
        for pod in cache[POD].in_namespace(namespace):
            owner = controller_of(pod)
            ours = owner is not None and (owner["kind"], owner["name"]) == ("Job", name)
            if ours and jobs.TRACKING in (meta(pod).get("finalizers") or ()):
                with suppress(NotFound):
                    await self.carrier.carry_out(cache.client, Plan(operations=[jobs.release(pod)]))


class CronJobs(Reconciler):
    kind, dependents, component = CRON_JOB, (JOB,), "cronjob-controller"

    async def look(self, cache: PlaneCache, obj: Object) -> float | None:
        plan = cronjobs.plan(
            obj, cache[JOB].in_namespace(meta(obj)["namespace"]), now=self.clock.now()
        )
        try:
            return await self.carrier.carry_out(cache.client, plan)
        except Refused:
            return _REFUSED_SECONDS

    def _dependent_changed(self, plane: str, event: EventType, obj: Object) -> None:
        if controller_of(obj) is not None:  # a CronJob adopts nothing: it has no selector
            super()._dependent_changed(plane, event, obj)


class EndpointSlices(Reconciler):
    kind, component = SERVICE, "endpoint-slice-controller"

    def __init__(self, sites: Sites, *, clock: Clock) -> None:
        super().__init__(sites, clock=clock)
        sites.on_change(POD, self._pod_changed)
        sites.on_change(ENDPOINT_SLICE, self._slice_changed)

    async def look(self, cache: PlaneCache, obj: Object) -> float | None:
        namespace = meta(obj)["namespace"]
        nodes = {str(meta(node)["name"]) for node in cache[NODE].items()}
        plan = endpointslices.plan(
            obj,
            cache[POD].in_namespace(namespace),
            cache[ENDPOINT_SLICE].in_namespace(namespace),
            nodes,
        )
        await self.carrier.carry_out(cache.client, plan)
        # Read each time, not followed: nobody but us writes it, and few read it.
        known = None
        with suppress(NotFound):
            known = await cache.client.get(ENDPOINTS, meta(obj)["name"], namespace)
        pods = cache[POD].in_namespace(namespace)
        if (done := endpoints.operation(obj, pods, nodes, known)) is not None:
            return await self.carrier.carry_out(cache.client, Plan(operations=[done]))
        return None

    async def gone(self, cache: PlaneCache, namespace: str, name: str) -> None:
        with suppress(NotFound):
            known = await cache.client.get(ENDPOINTS, name, namespace)
            if labels_of(known).get(endpoints.MANAGED_BY) == endpoints.OURS:
                await cache.client.delete(ENDPOINTS, name, namespace, uid=meta(known)["uid"])

    def _pod_changed(self, plane: str, event: EventType, pod: Object) -> None:
        cache = self.sites.get(plane)
        namespace = meta(pod)["namespace"]
        services = cache[SERVICE].in_namespace(namespace) if cache is not None else ()
        for service in services:
            selector = service["spec"].get("selector")
            # Or it was in one, and its labels have changed since.
            if selector and (selector.items() <= labels_of(pod).items() or event == "MODIFIED"):
                self.controller.add((plane, namespace, meta(service)["name"]))

    def _slice_changed(self, plane: str, event: EventType, slice_: Object) -> None:
        name = labels_of(slice_).get(endpointslices.SERVICE_NAME)
        if name and labels_of(slice_).get(endpointslices.MANAGED_BY) == endpointslices.OURS:
            self.controller.add((plane, meta(slice_)["namespace"], name))


class Quotas(Reconciler):
    """
    Keeps `status.used`. Refusing what is too much is the API server's part.

    ConfigMaps and Secrets are many and rarely limited: they are asked for when a quota
    names them, and again after a while.
    """

    kind, component = RESOURCE_QUOTA, "resourcequota-controller"

    def __init__(self, sites: Sites, *, clock: Clock) -> None:
        super().__init__(sites, clock=clock)
        for kind in _COUNTED:
            sites.on_change(kind, self._counted_changed)

    def _counted_changed(self, plane: str, event: EventType, obj: Object) -> None:
        cache = self.sites.get(plane)
        namespace = meta(obj)["namespace"]
        for quota in cache[RESOURCE_QUOTA].in_namespace(namespace) if cache is not None else ():
            self.controller.add((plane, namespace, meta(quota)["name"]))

    async def look(self, cache: PlaneCache, obj: Object) -> float | None:
        namespace = meta(obj)["namespace"]
        objects: dict[Kind, list[Object]] = {
            kind: cache[kind].in_namespace(namespace) for kind in _COUNTED
        }
        hard: Mapping[str, str] = obj["spec"].get("hard") or {}
        asked = [k for k in _ASKED if any(k.plural in name for name in hard)]
        for kind in asked:
            objects[kind] = list((await cache.client.list(kind, namespace)).items)
        await self.carrier.carry_out(cache.client, quotas.plan(obj, objects))
        return _RECOUNT_SECONDS if asked else None


class Budgets(Reconciler):
    """Keeps how many pods may be evicted. Granting an eviction is the API server's part."""

    kind, component = DISRUPTION_BUDGET, "controllermanager"
    _scaled = (DEPLOYMENT, REPLICA_SET, STATEFUL_SET)

    def __init__(self, sites: Sites, *, clock: Clock) -> None:
        super().__init__(sites, clock=clock)
        for kind in (POD, *self._scaled):
            sites.on_change(kind, self._counted_changed)

    def _counted_changed(self, plane: str, event: EventType, obj: Object) -> None:
        cache = self.sites.get(plane)
        namespace = meta(obj)["namespace"]
        for budget in cache[self.kind].in_namespace(namespace) if cache is not None else ():
            self.controller.add((plane, namespace, meta(budget)["name"]))

    async def look(self, cache: PlaneCache, obj: Object) -> float | None:
        namespace = meta(obj)["namespace"]
        owners = {
            (kind.kind, str(meta(owner)["name"])): owner
            for kind in self._scaled
            for owner in cache[kind].in_namespace(namespace)
        }
        pods = cache[POD].in_namespace(namespace)
        plan = budgets.plan(obj, pods, owners, now=self.clock.now())
        return await self.carrier.carry_out(cache.client, plan)


class Workloads:
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
