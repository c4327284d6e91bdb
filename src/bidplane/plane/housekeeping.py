"""
Housekeeping of a plane: namespaces and CRDs that end, garbage collection by owner, old events.

Every commit yields the objects that may need a check; they are checked one after the other, by a
task that exists only while there is work. A check is idempotent, so after a restart everything is
checked once.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from bidplane.api.kinds import CRD
from bidplane.errors import ApiError, NotFound, Unavailable
from bidplane.plane.call import Call
from bidplane.plane.identity import signing
from bidplane.plane.plane import Plane
from bidplane.plane.registry import CRDS
from bidplane.plane.storage.feed import Change, Item, Key
from bidplane.plane.storage.seeds import add_namespace_defaults
from bidplane.plane.turns import WorkSlice
from bidplane.plane.verbs.delete import FOREGROUND, ORPHAN, DeleteOptions, delete
from bidplane.plane.verbs.update import change, write_or_remove
from bidplane.wire import rbac
from bidplane.wire.kinds import namespaces
from bidplane.wire.kinds.others import CLAIM_PROTECTION
from bidplane.wire.schema.crds import CLEANUP, wants_names
from bidplane.wire.table.human import seconds

NAMESPACES, EVENTS, PODS = "namespaces", "events", "pods"
CLAIMS = "persistentvolumeclaims"
EVENT_SECONDS = 3600  # an event is kept this long, as upstream keeps it
SWEEP_SECONDS = 300


class Housekeeper:
    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._due: dict[Key, None] = {}  # an ordered set
        self._task: asyncio.Task[None] | None = None
        self._swept = 0.0
        self._is_sweep_due = False
        self._due.update(dict.fromkeys(plane.unsettled))
        requests = plane.store.items(signing.CSRS)
        self._due.update({request.key: None for request in requests if _needs_check(request)})
        # An earlier release could end a namespace before its objects.
        names = plane.store.namespaces_in_use()
        ended = (name for name in names if plane.store.get(Key(NAMESPACES, "", name)) is None)
        self._due.update({Key(NAMESPACES, "", name): None for name in ended})
        plane.store.observers.append(self._observe)

    def start(self) -> None:
        """Check the objects that are due; needs a running event loop."""
        if (self._due or self._is_sweep_due) and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        task, self._task = self._task, None
        self._due.clear()
        self._is_sweep_due = False
        if task is not None and task is not asyncio.current_task():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def abandon(self) -> None:
        self._due.clear()
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def _observe(self, change: Change) -> None:
        item = change.item
        if change.type != "DELETED":
            if item.key.resource == EVENTS:
                self._request_sweep()
            if item.key.resource == signing.CSRS:
                self._find_old_requests()
            if _needs_check(item) or _is_new_namespace(change):
                self._due[item.key] = None
        else:
            self._due.update(dict.fromkeys(self._plane.dependents.get(item.uid, ())))
            if item.key.resource == PODS:
                self._due.update(dict.fromkeys(_claims(item)))
            if item.key.resource == NAMESPACES:
                self._due[item.key] = None
            # Objects that wait for this deletion: its namespace, its CRD, its foreground owners.
            if item.key.namespace:
                self._due[Key(NAMESPACES, "", item.key.namespace)] = None
            if self._plane.store.get(Key(CRDS, "", item.key.resource)):
                self._due[Key(CRDS, "", item.key.resource)] = None
            for owner in item.obj["metadata"].get("ownerReferences") or ():
                if key := self._plane.uids.get(owner["uid"]):
                    self._due[key] = None
        if item.key.resource == rbac.CLUSTER_ROLES:
            roles = self._plane.store.items(rbac.CLUSTER_ROLES)
            self._due.update({role.key: None for role in roles if "aggregationRule" in role.obj})
        if item.key.resource == CRDS:
            # Names may have become free.
            waiting = (crd.key for crd in self._plane.store.items(CRDS) if wants_names(crd.obj))
            self._due.update(dict.fromkeys(waiting))
        self.start()

    def _request_sweep(self) -> None:
        """
        Request a sweep of old events, at most every `SWEEP_SECONDS`. New events trigger it: no
        timer.
        """
        now = self._plane.clock.now()
        if now - self._swept >= SWEEP_SECONDS:
            self._swept = now
            self._is_sweep_due = True

    async def _find_old_events(self) -> None:
        self._is_sweep_due = False
        work = WorkSlice(self._plane.turns, self._plane.name)
        for item in self._plane.store.items(EVENTS):
            if work.spend(len(item.raw)):
                await work.rest()
            if self._is_old(item):
                self._due[item.key] = None

    def _find_old_requests(self) -> None:
        now = self._plane.clock.now()
        requests = self._plane.store.items(signing.CSRS)
        self._due.update(
            {request.key: None for request in requests if signing.is_expired(request.obj, now)}
        )

    def _is_old(self, item: Item) -> bool:
        obj = item.peek()
        last = (
            (obj.get("series") or {}).get("lastObservedTime")
            or obj.get("lastTimestamp")
            or obj["metadata"].get("creationTimestamp")
        )
        at = seconds(last)
        return at is not None and self._plane.clock.now() - at > EVENT_SECONDS

    async def _run(self) -> None:
        try:
            while self._due or self._is_sweep_due:
                if self._is_sweep_due:
                    await self._find_old_events()
                    continue
                key = next(iter(self._due))
                del self._due[key]
                try:
                    await self._check(key)
                except NotFound:
                    pass  # someone else was quicker
                except Unavailable:
                    return  # the plane is closing
        finally:
            self._task = None

    async def _check(self, key: Key) -> None:
        item = self._plane.store.latest(key)
        if key.resource == NAMESPACES:
            await self._delete_leftovers(key.name, item)
        if item is None:
            return None
        meta = item.obj["metadata"]
        if key.resource == EVENTS and self._is_old(item):
            return await self._delete(item)
        if key.resource == signing.CSRS:
            if signing.is_expired(item.obj, self._plane.clock.now()):
                return await self._delete(item)
            if signing.is_due(item.obj) and (signed := signing.sign(self._plane, item.obj)):
                return await self._write(item, signed)
        if "deletionTimestamp" in meta:
            if key.resource == NAMESPACES:
                return await self._end_namespace(item)
            if key.resource == CRDS and CLEANUP in (meta.get("finalizers") or ()):
                return await self._end_crd(item)
            if CLAIM_PROTECTION in (meta.get("finalizers") or ()):
                await self._release_claim(item)
            elif ORPHAN in (meta.get("finalizers") or ()):
                return await self._orphan(item)
            elif FOREGROUND in (meta.get("finalizers") or ()):
                return await self._foreground(item)
        elif key.resource == NAMESPACES:
            await self._add_namespace_defaults(key.name)
        elif key.resource == rbac.CLUSTER_ROLES:
            await self._aggregate(item)
        if key.resource == CRDS and wants_names(item.obj):
            call = Call(resource=self._plane.registry.of(CRD), name=key.name, warnings=[])
            await change(self._plane, call, lambda old: old)
        if meta.get("ownerReferences"):
            await self._collect(item)
        return None

    async def _add_namespace_defaults(self, namespace: str) -> None:
        with contextlib.suppress(ApiError):  # ending meanwhile, or somebody made it
            await add_namespace_defaults(self._plane, namespace)

    async def _aggregate(self, item: Item) -> None:
        """Give an aggregated role the rules of the roles that it selects."""
        roles = [role.obj for role in self._plane.store.items(rbac.CLUSTER_ROLES)]
        rules = rbac.aggregated(item.obj, roles)
        if rules is not None and rules != (item.obj.get("rules") or []):
            await self._write(item, {**item.obj, "rules": rules})

    async def _delete(self, item: Item, propagation: str = "") -> None:
        if "deletionTimestamp" in item.obj["metadata"]:
            return
        resource = self._plane.registry.of_storage(item.key.resource)
        if resource is None:
            # Its CRD went with the process; nothing can serve it, and nothing holds it.
            await self._plane.store.remove(item.key, item.obj)
            return
        call = Call(resource=resource, namespace=item.key.namespace, name=item.key.name)
        try:
            await delete(self._plane, call, DeleteOptions(uid=item.uid, propagation=propagation))
        except (NotFound, Unavailable):
            raise
        except ApiError:
            self._due[item.key] = None  # it changed meanwhile; check again

    async def _delete_leftovers(self, name: str, namespace: Item | None) -> None:
        """
        Delete objects that are older than their namespace, or whose namespace does not exist.

        Their namespace ended before it was empty: they must not appear in another of that name.
        """
        for item in self._plane.store.in_namespace(name):
            # Baseline objects come with the release: they were never created here.
            if item.created and (namespace is None or item.created < namespace.created):
                await self._delete(item)

    async def _end_namespace(self, item: Item) -> None:
        name = item.key.name
        for content in self._plane.store.in_namespace(name):
            await self._delete(content)
        latest = self._plane.store.latest(item.key)
        if latest is None or next(self._plane.store.in_namespace(name), None) is not None:
            return  # each deletion that follows checks the namespace again
        spec = dict(latest.obj.get("spec") or {})
        spec["finalizers"] = [
            finalizer
            for finalizer in spec.get("finalizers") or ()
            if finalizer != namespaces.FINALIZER
        ]
        if not spec["finalizers"]:
            del spec["finalizers"]
        await self._write(latest, {**latest.obj, "spec": spec})

    async def _end_crd(self, item: Item) -> None:
        for custom_object in self._plane.store.items(item.key.name):
            await self._delete(custom_object)
        latest = self._plane.store.latest(item.key)
        if latest is not None and not self._plane.store.count(item.key.name):
            await self._drop_finalizer(latest, CLEANUP)

    async def _release_claim(self, item: Item) -> None:
        """Drop the finalizer of a claim when the last pod that uses it is gone."""
        pods = self._plane.store.items(PODS, item.key.namespace)
        if not any(item.key in _claims(pod) for pod in pods):
            await self._drop_finalizer(item, CLAIM_PROTECTION)

    async def _orphan(self, item: Item) -> None:
        for key in sorted(self._plane.dependents.get(item.uid, ())):
            if dependent := self._plane.store.latest(key):
                await self._drop_owners(dependent, {item.uid})
        if latest := self._plane.store.latest(item.key):
            await self._drop_finalizer(latest, ORPHAN)

    async def _foreground(self, item: Item) -> None:
        is_blocked = False
        for key in sorted(self._plane.dependents.get(item.uid, ())):
            if dependent := self._plane.store.latest(key):
                owners = dependent.obj["metadata"].get("ownerReferences") or ()
                is_blocked = is_blocked or any(
                    owner["uid"] == item.uid and owner.get("blockOwnerDeletion") for owner in owners
                )
                if all(self._is_gone_or_deleted(owner["uid"]) for owner in owners):
                    await self._delete(dependent, "Foreground")
        dependents = self._plane.dependents.get(item.uid, ())
        has_dependents = any(self._plane.store.latest(key) for key in dependents)
        if not (is_blocked and has_dependents) and (latest := self._plane.store.latest(item.key)):
            await self._drop_finalizer(latest, FOREGROUND)

    def _is_gone_or_deleted(self, uid: str) -> bool:
        key = self._plane.uids.get(uid)
        owner = key and self._plane.store.get(key)
        return not owner or "deletionTimestamp" in owner.obj["metadata"]

    async def _collect(self, item: Item) -> None:
        """
        Delete an object whose owners are all gone; else drop the references to those that are.
        """
        owners = item.obj["metadata"]["ownerReferences"]
        gone_uids = {owner["uid"] for owner in owners if self._is_gone(owner)}
        if len(gone_uids) == len(owners):
            await self._delete(item, "Background")
        elif gone_uids:
            await self._drop_owners(item, gone_uids)

    def _is_gone(self, owner: dict[str, Any]) -> bool:
        # An owner of a kind we do not serve may be anywhere: it is left alone, as upstream does.
        if not self._plane.registry.serves_kind(owner["apiVersion"], owner["kind"]):
            return False
        return owner["uid"] not in self._plane.uids

    async def _drop_owners(self, item: Item, uids: set[str]) -> None:
        meta = dict(item.obj["metadata"])
        remaining = [
            owner for owner in meta.get("ownerReferences") or () if owner["uid"] not in uids
        ]
        if remaining:
            meta["ownerReferences"] = remaining
        else:
            meta.pop("ownerReferences", None)
        await self._write(item, {**item.obj, "metadata": meta})

    async def _drop_finalizer(self, item: Item, finalizer: str) -> None:
        meta = dict(item.obj["metadata"])
        remaining = [name for name in meta.get("finalizers") or () if name != finalizer]
        if remaining:
            meta["finalizers"] = remaining
        else:
            meta.pop("finalizers", None)
        await self._write(item, {**item.obj, "metadata": meta})

    async def _write(self, item: Item, obj: dict[str, Any]) -> None:
        await write_or_remove(self._plane, item, {**obj, "metadata": dict(obj["metadata"])})


def _claims(pod: Item) -> list[Key]:
    """
    Return the claims that a pod uses; without a node it uses none, and will not start with one that
    goes.
    """
    spec = pod.obj.get("spec") or {}
    volumes = (spec.get("volumes") or ()) if spec.get("nodeName") else ()
    return [
        Key(CLAIMS, pod.key.namespace, volume["persistentVolumeClaim"].get("claimName", ""))
        for volume in volumes
        if "persistentVolumeClaim" in volume
    ]


def _is_new_namespace(change: Change) -> bool:
    """Return whether the change is a new namespace, which may lack its default objects."""
    key = change.item.key
    return key.resource == NAMESPACES and change.type == "ADDED"


def _needs_check(item: Item) -> bool:
    meta = item.obj["metadata"]
    if "ownerReferences" in meta or "deletionTimestamp" in meta:
        return True
    return item.key.resource == signing.CSRS and signing.is_due(item.obj)
