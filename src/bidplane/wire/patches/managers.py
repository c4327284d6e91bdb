"""
Owners of fields: `metadata.managedFields`, and the two ways to write.

An *update* takes ownership of the fields that it changes. An *apply* states all the fields that
its manager wants. To change a field that another manager owns is a conflict, unless `force` is
set. A field that the manager stated before and does not state now is removed, if nobody else
owns it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from bidplane.wire import status
from bidplane.wire.patches import fields
from bidplane.wire.patches.fields import BadFields, Fields
from bidplane.wire.schema import typed
from bidplane.wire.schema.shapes import SchemaNode
from bidplane.wire.status import Cause

APPLY, UPDATE = "Apply", "Update"
BEFORE_FIRST_APPLY = "before-first-apply"
ANCIENT = "ancient-changes"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
KUBECTL = "kubectl"
UPDATERS_LIMIT = 10
NAME_LIMIT = 128
# The fields of metadata that can be owned; the server sets the others.
_TRACKED_META = (
    "annotations",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "labels",
    "ownerReferences",
)

Object = Mapping[str, Any]


class Manager(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of managedFields."""

    name: str
    operation: str
    api_version: str
    subresource: str = ""
    time: str | None = None
    fields: Fields = {}

    @property
    def identity(self) -> tuple[str, ...]:
        """An applier is the same in every version; an updater is one per version."""
        version = "" if self.operation == APPLY else self.api_version
        return (self.operation, self.name, version, self.subresource)

    def __str__(self) -> str:
        text = f'"{self.name}"'
        if self.subresource:
            text += f' with subresource "{self.subresource}"'
        return text if self.operation == APPLY else f"{text} using {self.api_version}"

    def owning(self, owned: Fields, time: str | None = None) -> Manager:
        return msgspec.structs.replace(self, fields=owned, time=time or self.time)


def decode(entries: Any) -> list[Manager]:
    """Return the managers of a managedFields list; raises `BadFields`."""
    managers = []
    for entry in entries or ():
        if entry.get("operation") not in (APPLY, UPDATE):
            raise BadFields("operation must be Apply or Update")
        managers.append(
            Manager(
                name=entry.get("manager", ""),
                operation=entry["operation"],
                api_version=entry.get("apiVersion", ""),
                subresource=entry.get("subresource", ""),
                time=entry.get("time"),
                fields=fields.parsed(entry.get("fieldsV1") or {}),
            )
        )
    return managers


def encode(managers: Iterable[Manager]) -> list[dict[str, Any]]:
    """Return the managedFields list, in upstream's order: appliers first, then by time."""

    def order(manager: Manager) -> tuple[str, ...]:
        return (
            manager.operation,
            manager.time or "",
            manager.name,
            manager.api_version,
            manager.subresource,
        )

    return [
        {
            "manager": manager.name,
            "operation": manager.operation,
            "apiVersion": manager.api_version,
            **({"time": manager.time} if manager.time else {}),
            "fieldsType": "FieldsV1",
            "fieldsV1": fields.intern(manager.fields),
            **({"subresource": manager.subresource} if manager.subresource else {}),
        }
        for manager in sorted(managers, key=order)
    ]


def share(obj: Object) -> None:
    """Replace the field sets of a freshly decoded object by instances that objects share."""
    for entry in (obj.get("metadata") or {}).get("managedFields") or ():
        if "fieldsV1" in entry:
            entry["fieldsV1"] = fields.intern(entry["fieldsV1"])


def of(new: Object, old: Object | None) -> tuple[list[Manager], bool]:
    """
    Return the managers that a write starts from, and whether the write is tracked.

    A client may edit managedFields. If it leaves them out, the stored ones remain. `[{}]`
    deletes them all.
    """
    sent = new["metadata"].get("managedFields")
    stored = old["metadata"].get("managedFields") if old is not None else None
    if sent and sent is stored:
        return _stored(stored), True
    if sent == [{}]:
        return [], False
    if sent:
        try:
            return decode(sent), True
        except (BadFields, AttributeError):
            pass
    if old is None:
        return [], True
    return _stored(stored), bool(stored)


def _stored(entries: Any) -> list[Manager]:
    """Decode entries that the server wrote; their field sets are in canonical form already."""
    return [
        Manager(
            name=entry["manager"],
            operation=entry["operation"],
            api_version=entry["apiVersion"],
            subresource=entry.get("subresource", ""),
            time=entry.get("time"),
            fields=entry["fieldsV1"],
        )
        for entry in entries or ()
    ]


def _view(obj: Object) -> dict[str, Any]:
    """The part of an object that can be owned."""
    meta = obj.get("metadata") or {}
    tracked = {name: meta[name] for name in _TRACKED_META if meta.get(name) is not None}
    view = {key: value for key, value in obj.items() if key not in ("apiVersion", "kind")}
    if tracked:
        view["metadata"] = tracked
    else:
        view.pop("metadata", None)
    return view


def _without_meta(owned: Fields) -> Fields:
    """Return the set without `metadata` itself, which every object has and nobody owns."""
    meta = owned.get("f:metadata")
    if meta is None or not fields.is_member(meta):
        return owned
    meta_fields = {at: node for at, node in meta.items() if at != fields.SELF}
    rest = {at: node for at, node in owned.items() if at != "f:metadata"}
    return {**rest, "f:metadata": meta_fields} if meta_fields else rest


# Update.


def updated(
    managers: Sequence[Manager],
    writer: Manager,
    new: Object,
    old: Object | None,
    shape: SchemaNode,
    now: str,
) -> list[Manager]:
    """Return the managers after `writer` replaced `old` by `new`."""
    view = _view(new)
    if old is None:
        change = typed.FieldComparison(added=fields.added(view, shape))
    else:
        change = typed.compare(_view(old), view, shape)
    if not (change.added or change.modified or change.removed):
        return list(managers)
    mine = next((manager for manager in managers if manager.identity == writer.identity), writer)
    remaining = _give_up([manager for manager in managers if manager is not mine], change)
    owned = fields.difference(mine.fields, change.removed)
    owned = fields.union(fields.union(owned, change.modified), change.added)
    owned = _without_meta(owned)
    if owned and owned != mine.fields:
        remaining.append(mine.owning(owned, now))
    elif owned:
        remaining.append(mine)
    return _capped(remaining)


def _give_up(managers: Iterable[Manager], change: typed.FieldComparison) -> list[Manager]:
    """Return the managers without the changed fields, and without those left with no field."""
    lost = fields.union(fields.union(change.modified, change.added), change.removed)
    remaining = [manager.owning(fields.difference(manager.fields, lost)) for manager in managers]
    return [manager for manager in remaining if manager.fields]


def _capped(managers: list[Manager]) -> list[Manager]:
    """Merge the oldest updaters into one while there are more than `UPDATERS_LIMIT`."""
    if len(managers) <= UPDATERS_LIMIT:
        return managers
    updaters = sorted(
        (manager for manager in managers if manager.operation == UPDATE),
        key=lambda manager: manager.time or "",
    )
    while len(updaters) > UPDATERS_LIMIT:
        oldest, next_oldest, *rest = updaters
        both = Manager(
            name=ANCIENT,
            operation=UPDATE,
            api_version=next_oldest.api_version,
            time=next_oldest.time,
            fields=fields.union(oldest.fields, next_oldest.fields),
        )
        updaters = [both, *rest]
    return [manager for manager in managers if manager.operation != UPDATE] + updaters


# Apply.


def before_first_apply(live: Object, shape: SchemaNode, api_version: str) -> Manager:
    """Return the manager that owns all fields set before the first apply."""
    return Manager(
        name=BEFORE_FIRST_APPLY,
        operation=UPDATE,
        api_version=api_version,
        fields=_without_meta(fields.applied(_view(live), shape)),
    )


def applied(
    managers: Sequence[Manager],
    applier: Manager,
    config: Object,
    live: Object,
    shape: SchemaNode,
    *,
    force: bool,
    now: str,
    ignored: Sequence[str] = (),
) -> tuple[dict[str, Any], list[Manager]]:
    """Return `live` with `config` applied, and the new managers; raises 409 on a conflict."""
    mine = next((manager for manager in managers if manager.identity == applier.identity), None)
    other_managers = [manager for manager in managers if manager is not mine]
    view, config_view = _view(live), _view(config)
    for name in ignored:
        config_view.pop(name, None)
    stated = fields.applied(config_view, shape)
    merged = typed.merge(view, config_view, shape)
    if mine is not None and mine.fields:
        claims = [stated, *(manager.fields for manager in other_managers)]
        merged = _pruned(merged, mine.fields, claims, shape)
    change = typed.compare(view, merged, shape)
    if not force:
        _refuse_conflicts(other_managers, change, live, shape, applier)
    remaining = _give_up(other_managers, change)
    changed = bool(change.added or change.modified or change.removed)
    time = now if changed else (mine.time if mine else None)
    if stated:
        remaining.append(msgspec.structs.replace(applier, fields=stated, time=time))
    return _joined(live, config, merged), remaining


def _pruned(merged: Any, last: Fields, claims: Sequence[Fields], shape: SchemaNode) -> Any:
    """
    Return `merged` without the fields that were stated last time and that nobody owns now.

    Removing an entry of a list removes all fields below it. So a first removal finds the fields
    below that somebody owns or that the manager never stated; the second one spares them.
    """
    before = fields.named(last, shape)
    cut = typed.remove(merged, before, shape) or {}
    everything = fields.named(fields.applied(merged, shape), shape)
    retained = fields.named(fields.applied(cut, shape), shape)
    for claim in claims:
        retained = fields.union(retained, fields.named(claim, shape))
    cut = typed.remove(merged, fields.difference(everything, retained), shape) or {}
    removed = fields.difference(everything, fields.named(fields.applied(cut, shape), shape))
    return typed.remove(merged, fields.intersection(removed, before), shape) or {}


def _joined(live: Object, config: Object, merged: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merged part with the fields nobody owns, from `live`, or from `config` if new."""
    rest = {**(config.get("metadata") or {}), **(live.get("metadata") or {})}
    for condition in ("resourceVersion", "uid"):
        if (config.get("metadata") or {}).get(condition):
            rest[condition] = config["metadata"][condition]
    fixed = {key: value for key, value in rest.items() if key not in _TRACKED_META}
    joined = {
        "apiVersion": config.get("apiVersion"),
        "kind": config.get("kind"),
        **{key: value for key, value in merged.items() if value is not None},
        "metadata": {**fixed, **(merged.get("metadata") or {})},
    }
    joined["metadata"].pop("managedFields", None)
    return joined


def _refuse_conflicts(
    other_managers: Sequence[Manager],
    change: typed.FieldComparison,
    live: Object,
    shape: SchemaNode,
    applier: Manager,
) -> None:
    touched = fields.union(change.modified, change.added)
    conflicts = [
        (manager, fields.intersection(manager.fields, touched)) for manager in other_managers
    ]
    if applier.name == KUBECTL:
        # kubectl itself wrote these, by the annotation, before it applied on the server.
        own = _last_applied(live, shape)
        conflicts = [(manager, fields.difference(owned, own)) for manager, owned in conflicts]
    conflicting = [
        (manager, path) for manager, owned in conflicts for path in fields.members(owned)
    ]
    if not conflicting:
        return
    conflicting.sort(key=lambda pair: (pair[0].identity, pair[1]))
    causes = [
        Cause(f"conflict with {manager}", path, "FieldManagerConflict")
        for manager, path in conflicting
    ]
    if len(conflicting) == 1:
        summary = f"1 conflict: conflict with {conflicting[0][0]}: {conflicting[0][1]}"
    else:
        lines, last = [], None
        for manager, path in conflicting:
            if manager is not last:
                lines.append(f"conflicts with {manager}:")
                last = manager
            lines.append(f"- {path}")
        summary = f"{len(conflicting)} conflicts: " + "\n".join(lines)
    raise status.refuse(409, "Conflict", f"Apply failed with {summary}", causes=causes)


def _last_applied(live: Object, shape: SchemaNode) -> Fields:
    """Return the fields that still have the values in kubectl's last-applied annotation."""
    text = ((live.get("metadata") or {}).get("annotations") or {}).get(LAST_APPLIED)
    try:
        config = msgspec.json.decode(text or "null", type=dict[str, Any])
        view = _view(config)
        change = typed.compare(view, _view(live), shape)
        unchanged = fields.applied(view, shape)
    except (msgspec.MsgspecError, BadFields, AttributeError, TypeError):
        return {}
    for different in (change.modified, change.added, change.removed):
        unchanged = fields.difference(unchanged, different)
    return unchanged


def note_last_applied(obj: dict[str, Any], config: Object, live: Object, manager_name: str) -> None:
    """Update the last-applied annotation, for clients that still apply by it."""
    if manager_name != KUBECTL:
        return
    if LAST_APPLIED not in ((live.get("metadata") or {}).get("annotations") or {}):
        return
    meta = dict(config.get("metadata") or {})
    notes = {k: v for k, v in (meta.get("annotations") or {}).items() if k != LAST_APPLIED}
    if notes:
        meta["annotations"] = notes
    else:
        meta.pop("annotations", None)
    text = msgspec.json.encode({**config, "metadata": meta}, order="sorted").decode() + "\n"
    annotations = obj["metadata"].get("annotations") or {}
    obj["metadata"]["annotations"] = {**annotations, LAST_APPLIED: text}
