"""
The base of every workload's reconciler: which key to reconcile when an object changes.

A change of an object that has a controller reconciles that controller; a change of an orphan
reconciles each owner whose selector matches it.
"""

from __future__ import annotations

from collections.abc import Callable

from bidplane.api.kinds import Kind, Object
from bidplane.api.objects import controller_of, labels_of, metadata_of
from bidplane.controllers.workloads.execution import PlanExecutor
from bidplane.core.workloads.common import selector_of
from bidplane.kube.client import EventType
from bidplane.machinery.clock import Clock
from bidplane.machinery.controller import Controller
from bidplane.machinery.planes import PlaneCache, PlaneHandler

Key = tuple[str, str, str]  # plane, namespace, name


class Sites:
    """Every plane these controllers work in: the agents', and the host's if it is ours."""

    def __init__(
        self,
        get: Callable[[str], PlaneCache | None],
        on_change: Callable[[Kind, PlaneHandler], None],
    ) -> None:
        self.get, self.on_change = get, on_change


class Reconciler:
    """Reconciles objects of `kind`, when they or one of their `dependents` change."""

    kind: Kind
    dependents: tuple[Kind, ...] = ()
    component = ""

    def __init__(self, sites: Sites, *, clock: Clock) -> None:
        self.sites, self.clock = sites, clock
        self.carrier = PlanExecutor(self.component, clock=clock)
        self.controller: Controller[Key] = Controller(self.kind.plural, self.reconcile)
        sites.on_change(self.kind, self._changed)
        for kind in self.dependents:
            sites.on_change(kind, self._dependent_changed)

    async def reconcile(self, key: Key) -> float | None:
        """Reconcile the object of that key, or clean up after it."""
        plane, namespace, name = key
        cache = self.sites.get(plane)
        if cache is None:
            return None
        obj = cache[self.kind].get(namespace, name)
        if obj is None:
            await self.clean_up(cache, namespace, name)
            return None
        return await self.reconcile_object(cache, obj)

    async def reconcile_object(self, cache: PlaneCache, obj: Object) -> float | None:
        """Reconcile one object; return the seconds until the next look, or None."""
        raise NotImplementedError

    async def clean_up(self, cache: PlaneCache, namespace: str, name: str) -> None:
        """Clean up after an object that no longer exists."""

    def _changed(self, plane: str, event: EventType, obj: Object) -> None:
        """Reconcile a changed object."""
        self.controller.add((plane, metadata_of(obj)["namespace"], metadata_of(obj)["name"]))

    def _dependent_changed(self, plane: str, event: EventType, obj: Object) -> None:
        """Reconcile the controller of a changed dependent, or those that may adopt it."""
        namespace = metadata_of(obj)["namespace"]
        owner = controller_of(obj)
        if owner is not None:
            if owner["kind"] == self.kind.kind:
                self.controller.add((plane, namespace, owner["name"]))
            return
        cache = self.sites.get(plane)
        if cache is None or event == "DELETED" or not labels_of(obj):
            return
        for candidate in cache[self.kind].in_namespace(namespace):
            selector = selector_of(candidate)
            if selector is not None and selector.matches(obj):
                self.controller.add((plane, namespace, metadata_of(candidate)["name"]))
