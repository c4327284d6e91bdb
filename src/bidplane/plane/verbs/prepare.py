"""
What happens to an object between the client's bytes and the store, on any write.

Nothing here awaits: the verbs rely on it (see `store`).
"""

from __future__ import annotations

import contextlib
from typing import Any

from bidplane.kube.client import Object
from bidplane.plane import admission, signing
from bidplane.plane import rules as cel_rules
from bidplane.plane.call import Call
from bidplane.plane.plane import Plane
from bidplane.plane.registry import CRDS
from bidplane.plane.verbs import podparts
from bidplane.wire import crds, decode, kinds, managers, metadata, resources, status, validate
from bidplane.wire.fields import BadFields
from bidplane.wire.managers import Manager
from bidplane.wire.shapes import Shape
from bidplane.wire.status import Cause


def shaped(call: Call, sent: Any, shape: Shape | None = None) -> dict[str, Any]:
    """A copy of what was sent, as its kind has it; 400 when it is something else."""
    resource = call.resource
    if not isinstance(sent, dict) and not hasattr(sent, "keys"):
        raise status.bad_request("the object provided is not a JSON object")
    kind, api_version = sent.get("kind") or resource.kind, sent.get("apiVersion")
    if kind != resource.kind or api_version not in (None, "", resource.api_version):
        raise status.bad_request(
            f"the API version in the data ({api_version}) does not match the expected API version"
            f" ({resource.api_version})"
            if kind == resource.kind
            else f"{kind} in version {api_version!r} cannot be handled as a {resource.kind}"
        )
    report = decode.Report()
    obj = decode.clean(sent, shape or resources.shape(resource), report)
    _judge(call, report, str((sent.get("metadata") or {}).get("name") or call.name))
    obj["apiVersion"], obj["kind"] = resource.api_version, resource.kind
    meta = obj.setdefault("metadata", {})
    for field in ("finalizers", "ownerReferences"):
        if field in meta and not meta[field]:
            del meta[field]
    return call.kept(obj)


def _judge(call: Call, report: decode.Report, name: str) -> None:
    resource = call.resource
    head = f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}'
    if report.wrong:
        if resource.custom:
            raise status.invalid(resource.about(name), [*report.wrong, *_unasked(call)])
        raise status.bad_request(f"{head}: json: {report.wrong[0]}")
    if call.field_validation == "Ignore":
        return
    said = [f'duplicate field "{path}"' for path in call.duplicates]
    said += [f'unknown field "{path}"' for path in report.unknown]
    if not said:
        return
    if call.field_validation == "Strict":
        raise status.bad_request(f"{head}: strict decoding error: {', '.join(said)}")
    call.warnings.extend(said)


def for_create(
    plane: Plane, call: Call, obj: dict[str, Any], owners: list[Manager] | None = None
) -> None:
    """
    Give a new object what the server gives it, and refuse it if it is wrong.

    `owners` are its field managers when it was applied; else the caller owns all of it.
    """
    resource, rules, meta = call.resource, kinds.rules(call.resource.storage), obj["metadata"]
    if resource.namespaced:
        if meta.get("namespace") not in (None, "", call.namespace):
            raise status.bad_request(
                "the namespace of the provided object does not match the namespace sent on the"
                " request"
            )
        meta["namespace"] = call.namespace
    else:
        meta.pop("namespace", None)
    if meta.get("resourceVersion"):
        raise status.bad_request("resourceVersion should not be set on objects to be created")
    for field in ("deletionTimestamp", "deletionGracePeriodSeconds", "generation", "selfLink"):
        meta.pop(field, None)
    if not meta.get("name") and meta.get("generateName"):
        meta["name"] = metadata.generated_name(meta["generateName"], plane.new_suffix())
    meta["uid"], meta["creationTimestamp"] = plane.new_uid(), plane.now()
    if resource.custom or rules.generation:
        meta["generation"] = 1
    if resource.has_status and not (rules.keeps_status or call.with_status):
        obj.pop("status", None)
    if resource.storage == signing.CSRS:
        signing.ask(call, obj)
    rules.default(obj)
    _own_fields(plane, call, obj, None, owners)
    admission.admit(plane, resource.storage, obj, None)
    rules.create(obj)
    _own(plane, call, obj)
    named = _named(call, meta.get("name", ""))
    _check(plane, named, "CREATE", obj, None)


def for_update(
    plane: Plane,
    call: Call,
    new: dict[str, Any],
    old: Object,
    owners: list[Manager] | None = None,
) -> dict[str, Any]:
    """`new` as it may replace `old`: with what only the server sets, and only what may change."""
    resource, rules = call.resource, kinds.rules(call.resource.storage)
    changed_fixed = metadata.carry_over(new, old)
    if resource.storage == signing.CSRS:
        new = signing.only(call, new, old, plane.now())
    elif call.subresource == "status":
        new = _status_only(call, new, old)
    elif call.subresource in POD_PARTS:
        new = podparts.only(call, new, old)
    elif resource.has_status and not _owns_status(call):
        _put(new, "status", old.get("status"))
    rules.default(new)
    _own_fields(plane, call, new, old, owners)
    admission.admit(plane, resource.storage, new, old)
    _own(plane, call, new)
    if changed_fixed:
        raise status.invalid(call.about, changed_fixed)
    if (resource.custom or rules.generation) and _intent(call, new) != _intent(call, old):
        new["metadata"]["generation"] = int(old["metadata"].get("generation", 0)) + 1
    _check(plane, call, "UPDATE", new, old)
    return new


POD_PARTS = ("resize", "ephemeralcontainers")
PLANE = "bidplane"  # the manager of what controllers in this process write


def _own_fields(
    plane: Plane,
    call: Call,
    new: dict[str, Any],
    old: Object | None,
    owners: list[Manager] | None,
) -> None:
    """Write down who owns which field now."""
    resource = call.resource
    if owners is None:
        # Only a write of the whole object may edit the entries themselves.
        found, tracked = managers.of({"metadata": {}} if call.subresource else new, old)
        # What the plane itself makes is not tracked until somebody cares who owns it.
        if tracked and (call.manager or found):
            who = Manager(
                name=call.manager or PLANE,
                operation=managers.UPDATE,
                api_version=resource.api_version,
                subresource=call.subresource,
            )
            before = None if old is None else call.shown(old)
            shape = resources.shape(resource)
            # Entries nobody can tell apart are for validation to speak of.
            with contextlib.suppress(BadFields):
                found = managers.updated(found, who, call.shown(new), before, shape, plane.now())
    else:
        found = owners
    if found:
        new["metadata"]["managedFields"] = managers.encode(found)
    else:
        new["metadata"].pop("managedFields", None)


def _own(plane: Plane, call: Call, obj: dict[str, Any]) -> None:
    """A CRD is served from the moment it is kept."""
    if call.resource.storage != CRDS:
        return
    if crds.problems(obj):
        return  # _check will say so
    name = obj["metadata"].get("name")
    others = [item.obj for item in plane.store.items(CRDS) if item.key.name != name]
    obj["status"] = crds.established(obj, plane.now(), crds.names_taken(obj, others))


def _owns_status(call: Call) -> bool:
    return call.resource.storage == CRDS


def _status_only(call: Call, new: dict[str, Any], old: Object) -> dict[str, Any]:
    kept = dict(old)
    _put(kept, "status", new.get("status"))
    # Upstream lets a built-in's status writer touch metadata (a kubelet sets annotations so).
    kept["metadata"] = dict(old["metadata"] if call.resource.custom else new["metadata"])
    return kept


def _put(obj: dict[str, Any], field: str, value: Any) -> None:
    if value is None:
        obj.pop(field, None)
    else:
        obj[field] = value


def _intent(call: Call, obj: Object) -> Any:
    """What `generation` counts changes of."""
    if call.resource.custom:
        ignored = {"metadata", "status"} if call.resource.has_status else {"metadata"}
        return {key: value for key, value in obj.items() if key not in ignored}
    return obj.get("spec")


def _named(call: Call, name: str) -> Call:
    call.name = name
    return call


def _unasked(call: Call) -> list[Cause]:
    """Said when a schema has rules, and the object was too wrong to ask them."""
    if call.resource.schema is None or cel_rules.plan(call.resource.schema) is None:
        return []
    words = (
        "Invalid value: null: some validation rules were not checked because the object was"
        " invalid; correct the existing errors to complete validation"
    )
    return [Cause(words, "<nil>")]


def _by_rules(call: Call, shown: Object, old: Object | None) -> list[Cause]:
    """What the CEL rules of a CRD say, and whether those of a new CRD can be asked."""
    if call.resource.schema is not None:
        asked = cel_rules.plan(call.resource.schema)
        if asked is None:
            return []
        return cel_rules.broken(asked, shown, None if old is None else call.shown(old))
    if call.resource.storage == CRDS:
        return cel_rules.problems(shown)
    return []


def _check(plane: Plane, call: Call, operation: str, new: Object, old: Object | None) -> None:
    resource, rules = call.resource, kinds.rules(call.resource.storage)
    # Definitions are checked as custom objects are: their own finalizer has no path.
    lenient = resource.custom or resource.storage == CRDS
    found = metadata.problems(
        new, namespaced=resource.namespaced, name_rule=rules.name, custom=lenient
    )
    shown = call.shown(new)
    # Only its status was written: the spec was looked at when it was.
    told = (
        call.subresource == "status"
        and resource.storage != signing.CSRS
        and old is not None
        and new.get("spec") is old.get("spec")
    )
    passed = ("spec",) if told else ()
    misshapen = validate.problems(shown, resources.shape(resource), passed=passed)
    found += misshapen
    if not misshapen and not told:
        found += rules.validate(new)
        if resource.storage == signing.CSRS:
            found += signing.problems(new, old)
        # A path of its own for one part of a pod has its own rules, and has asked them.
        if old is not None and call.subresource not in POD_PARTS:
            found += rules.change(new, old)
    if not found:
        found += _by_rules(call, shown, old)
    elif resource.custom:
        found += _unasked(call)
    if found:
        raise status.invalid(call.about, found)
    if resource.storage == signing.CSRS:
        signing.permit(plane, call, new, old)
    plane.access.check_escalation(
        call.user, resource.storage, dict(new), None if old is None else dict(old)
    )
    if plane.admit is not None:
        refusals = plane.admit(
            plane.name,
            operation,
            resource.coordinates,
            shown,
            None if old is None else call.shown(old),
        )
        if refusals:
            raise status.invalid(call.about, [Cause(words) for words in refusals])
