"""
Who owns which field: `metadata.managedFields`, and the two ways to write.

An *update* takes what it changes, from whoever had it. An *apply* states all that its manager
wants: what others own and would change is a conflict (or is taken, with `force`), and what the
manager stated before and does not state now goes, if nobody else wants it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from bidplane.wire import fields, status, typed
from bidplane.wire.fields import BadFields, Fields
from bidplane.wire.shapes import Shape
from bidplane.wire.status import Cause

APPLY, UPDATE = "Apply", "Update"
BEFORE_FIRST_APPLY = "before-first-apply"
ANCIENT = "ancient-changes"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
KUBECTL = "kubectl"
UPDATERS_LIMIT = 10
NAME_LIMIT = 128
# What the server keeps in metadata, nobody owns.
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
        said = f'"{self.name}"'
        if self.subresource:
            said += f' with subresource "{self.subresource}"'
        return said if self.operation == APPLY else f"{said} using {self.api_version}"

    def owning(self, owned: Fields, time: str | None = None) -> Manager:
        return msgspec.structs.replace(self, fields=owned, time=time or self.time)


def decode(entries: Any) -> list[Manager]:
    """The managers a client or the store wrote down; raises `BadFields`."""
    found = []
    for entry in entries or ():
        if entry.get("operation") not in (APPLY, UPDATE):
            raise BadFields("operation must be Apply or Update")
        found.append(
            Manager(
                name=entry.get("manager", ""),
                operation=entry["operation"],
                api_version=entry.get("apiVersion", ""),
                subresource=entry.get("subresource", ""),
                time=entry.get("time"),
                fields=fields.parsed(entry.get("fieldsV1") or {}),
            )
        )
    return found


def encode(managers: Iterable[Manager]) -> list[dict[str, Any]]:
    """In upstream's order: appliers first, then by time."""

    def order(one: Manager) -> tuple[str, ...]:
        return (one.operation, one.time or "", one.name, one.api_version, one.subresource)

    return [
        {
            "manager": one.name,
            "operation": one.operation,
            "apiVersion": one.api_version,
            **({"time": one.time} if one.time else {}),
            "fieldsType": "FieldsV1",
            "fieldsV1": fields.shared(one.fields),
            **({"subresource": one.subresource} if one.subresource else {}),
        }
        for one in sorted(managers, key=order)
    ]


def share(obj: Object) -> None:
    """Have an object that was just decoded hold its sets of fields together with others."""
    for entry in (obj.get("metadata") or {}).get("managedFields") or ():
        if "fieldsV1" in entry:
            entry["fieldsV1"] = fields.shared(entry["fieldsV1"])


def of(new: Object, old: Object | None) -> tuple[list[Manager], bool]:
    """
    The managers a write starts from, and whether it is to be tracked.

    A client may edit managedFields; one that does not know them, and leaves them out, loses
    nothing. `[{}]` is the way to say: forget them all.
    """
    sent = new["metadata"].get("managedFields")
    kept = old["metadata"].get("managedFields") if old is not None else None
    if sent and sent is kept:
        return _stored(kept), True
    if sent == [{}]:
        return [], False
    if sent:
        try:
            return decode(sent), True
        except (BadFields, AttributeError):
            pass
    if old is None:
        return [], True
    return _stored(kept), bool(kept)


def _stored(entries: Any) -> list[Manager]:
    """As `decode`, of what we wrote ourselves: its spelling is ours already."""
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
    """metadata itself is in every object, and nobody's."""
    meta = owned.get("f:metadata")
    if meta is None or not fields.is_member(meta):
        return owned
    left = {at: node for at, node in meta.items() if at != fields.SELF}
    rest = {at: node for at, node in owned.items() if at != "f:metadata"}
    return {**rest, "f:metadata": left} if left else rest


# Update.


def updated(
    managers: Sequence[Manager],
    who: Manager,
    new: Object,
    old: Object | None,
    shape: Shape,
    now: str,
) -> list[Manager]:
    """The managers after `who` made `new` of `old`."""
    view = _view(new)
    if old is None:
        change = typed.Comparison(added=fields.added(view, shape))
    else:
        change = typed.compare(_view(old), view, shape)
    if not (change.added or change.modified or change.removed):
        return list(managers)
    mine = next((one for one in managers if one.identity == who.identity), who)
    others = _give_up([one for one in managers if one is not mine], change)
    owned = fields.difference(mine.fields, change.removed)
    owned = fields.union(fields.union(owned, change.modified), change.added)
    owned = _without_meta(owned)
    if owned and owned != mine.fields:
        others.append(mine.owning(owned, now))
    elif owned:
        others.append(mine)
    return _capped(others)


def _give_up(managers: Iterable[Manager], change: typed.Comparison) -> list[Manager]:
    lost = fields.union(fields.union(change.modified, change.added), change.removed)
    left = [one.owning(fields.difference(one.fields, lost)) for one in managers]
    return [one for one in left if one.fields]


def _capped(managers: list[Manager]) -> list[Manager]:
    """The oldest updaters become one, past a number."""
    if len(managers) <= UPDATERS_LIMIT:
        return managers
    updaters = sorted(
        (one for one in managers if one.operation == UPDATE), key=lambda one: one.time or ""
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
    return [one for one in managers if one.operation != UPDATE] + updaters


# Apply.


def before_first_apply(live: Object, shape: Shape, api_version: str) -> Manager:
    """The owner of everything that was there before anyone was asked to own it."""
    return Manager(
        name=BEFORE_FIRST_APPLY,
        operation=UPDATE,
        api_version=api_version,
        fields=_without_meta(fields.applied(_view(live), shape)),
    )


def applied(
    managers: Sequence[Manager],
    who: Manager,
    config: Object,
    live: Object,
    shape: Shape,
    *,
    force: bool,
    now: str,
    ignored: Sequence[str] = (),
) -> tuple[dict[str, Any], list[Manager]]:
    """`live` with `config` applied by `who`, and the managers then; 409 on a conflict."""
    mine = next((one for one in managers if one.identity == who.identity), None)
    others = [one for one in managers if one is not mine]
    view, wanted = _view(live), _view(config)
    for name in ignored:
        wanted.pop(name, None)
    stated = fields.applied(wanted, shape)
    merged = typed.merge(view, wanted, shape)
    if mine is not None and mine.fields:
        claims = [stated, *(one.fields for one in others)]
        merged = _pruned(merged, mine.fields, claims, shape)
    change = typed.compare(view, merged, shape)
    if not force:
        _refuse_conflicts(others, change, live, shape, who)
    left = _give_up(others, change)
    changed = bool(change.added or change.modified or change.removed)
    time = now if changed else (mine.time if mine else None)
    if stated:
        left.append(msgspec.structs.replace(who, fields=stated, time=time))
    return _joined(live, config, merged), left


def _pruned(merged: Any, last: Fields, claims: Sequence[Fields], shape: Shape) -> Any:
    """
    `merged` without what was stated last time and is claimed by nobody now.

    To drop an entry of a list drops all of it; so what somebody claims below it, and what its
    manager never stated, is first seen to go and then left out of the removal.
    """
    before = fields.named(last, shape)
    cut = typed.remove(merged, before, shape) or {}
    everything = fields.named(fields.applied(merged, shape), shape)
    kept = fields.named(fields.applied(cut, shape), shape)
    for claim in claims:
        kept = fields.union(kept, fields.named(claim, shape))
    cut = typed.remove(merged, fields.difference(everything, kept), shape) or {}
    gone = fields.difference(everything, fields.named(fields.applied(cut, shape), shape))
    return typed.remove(merged, fields.intersection(gone, before), shape) or {}


def _joined(live: Object, config: Object, merged: Mapping[str, Any]) -> dict[str, Any]:
    """The merged part, with what nobody owns: from the live object, or from config if new."""
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
    others: Sequence[Manager], change: typed.Comparison, live: Object, shape: Shape, who: Manager
) -> None:
    touched = fields.union(change.modified, change.added)
    conflicts = [(one, fields.intersection(one.fields, touched)) for one in others]
    if who.name == KUBECTL:
        # kubectl itself wrote these, by the annotation, before it applied on the server.
        own = _last_applied(live, shape)
        conflicts = [(one, fields.difference(owned, own)) for one, owned in conflicts]
    told = [(one, path) for one, owned in conflicts for path in fields.members(owned)]
    if not told:
        return
    told.sort(key=lambda pair: (pair[0].identity, pair[1]))
    causes = [Cause(f"conflict with {one}", path, "FieldManagerConflict") for one, path in told]
    if len(told) == 1:
        words = f"1 conflict: conflict with {told[0][0]}: {told[0][1]}"
    else:
        lines, last = [], None
        for one, path in told:
            if one is not last:
                lines.append(f"conflicts with {one}:")
                last = one
            lines.append(f"- {path}")
        words = f"{len(told)} conflicts: " + "\n".join(lines)
    raise status.refuse(409, "Conflict", f"Apply failed with {words}", causes=causes)


def _last_applied(live: Object, shape: Shape) -> Fields:
    """The fields that are as kubectl's annotation says it applied them."""
    text = ((live.get("metadata") or {}).get("annotations") or {}).get(LAST_APPLIED)
    try:
        config = msgspec.json.decode(text or "null", type=dict[str, Any])
        view = _view(config)
        change = typed.compare(view, _view(live), shape)
        same = fields.applied(view, shape)
    except (msgspec.MsgspecError, BadFields, AttributeError, TypeError):
        return {}
    for different in (change.modified, change.added, change.removed):
        same = fields.difference(same, different)
    return same


def note_last_applied(obj: dict[str, Any], config: Object, live: Object, who: str) -> None:
    """Keep kubectl's annotation true for a kubectl that still applies by it."""
    if who != KUBECTL:
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
