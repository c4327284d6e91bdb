"""
Decoding, defaulting and validation of an object before it is stored, on any write.

Nothing here awaits: the verbs rely on it (see `store`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import msgspec

from bidplane.core.policies import programs as policy_programs
from bidplane.kube.client import Object
from bidplane.plane.admission import defaults, policies
from bidplane.plane.admission import rules as cel_rules
from bidplane.plane.admission.policies.enforce import POLICIES
from bidplane.plane.call import APPLY, Call
from bidplane.plane.identity import signing
from bidplane.plane.plane import Plane
from bidplane.plane.registry import CRDS
from bidplane.plane.verbs import podparts
from bidplane.wire import kinds, metadata, resources, status
from bidplane.wire.patches import managers
from bidplane.wire.patches.fields import BadFields
from bidplane.wire.patches.managers import Manager
from bidplane.wire.schema import crds, decode, shapes, validate
from bidplane.wire.schema.scalars import Mistyped
from bidplane.wire.schema.shapes import SchemaNode
from bidplane.wire.status import Cause, StatusError


def decode_object(call: Call, sent: Any, shape: SchemaNode | None = None) -> dict[str, Any]:
    """Return a copy of the sent object, decoded as its kind; raise 400 for another kind or form."""
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
    report = decode.DecodeReport()
    try:
        shape = shape or resources.shape(resource)
        obj = decode.clean(sent, shape, report)
    except Mistyped as error:
        raise _undecodable(call, error, sent) from None
    _check_report(call, report, sent)
    spec = shape.fields.get("spec")
    if spec is not None and spec.builtin and spec.kind == shapes.OBJECT:
        obj.setdefault("spec", {})  # a struct: Go's JSON always has it
    obj["apiVersion"], obj["kind"] = resource.api_version, resource.kind
    meta = obj.setdefault("metadata", {})
    for field in ("finalizers", "ownerReferences"):
        if field in meta and not meta[field]:
            del meta[field]
    return call.to_stored_version(obj)


def body_of(sent: Any, api_version: str, kind: str) -> dict[str, Any]:
    """Return a body that is not stored itself (a Binding, DeleteOptions), decoded as its kind."""
    shape = shapes.builtin(api_version, kind)
    assert shape is not None, f"no schema was recorded for {kind}"
    if not isinstance(sent, Mapping):
        raise status.bad_request(f"{kind} must be a JSON object")
    try:
        body: dict[str, Any] = decode.clean(sent, shape, decode.DecodeReport())
    except Mistyped as error:
        version = api_version.rpartition("/")[2]
        message = f'{kind} in version "{version}" cannot be handled as a {kind}: {error}'
        raise status.bad_request(message) from None
    return body


def _check_report(call: Call, report: decode.DecodeReport, sent: Any) -> None:
    """Raise or warn for wrong, unknown and duplicate fields, as fieldValidation demands."""
    resource = call.resource
    if report.wrong:
        if resource.custom:
            meta = sent.get("metadata")
            name = meta.get("name") if isinstance(meta, Mapping) else ""
            about = resource.about(str(name or call.name))
            raise status.invalid(about, [*report.wrong, *_unchecked_rules(call)])
        raise status.bad_request(f"{_cannot_handle(call)}: {report.wrong[0]}")
    if call.field_validation == "Ignore":
        return
    problems = [f'duplicate field "{path}"' for path in call.duplicates]
    problems += [f'unknown field "{path}"' for path in report.unknown]
    if not problems:
        return
    if call.field_validation == "Strict":
        message = f"strict decoding error: {', '.join(problems)}"
        raise bad_patch(call, message, sent) or status.bad_request(
            f"{_cannot_handle(call)}: {message}"
        )
    call.warnings.extend(problems)


def _cannot_handle(call: Call) -> str:
    kind = call.resource.kind
    return f'{kind} in version "{call.resource.version}" cannot be handled as a {kind}'


def _undecodable(call: Call, error: Mistyped, sent: Any) -> StatusError:
    """Return the refusal of a value that its type cannot hold, by how it was sent."""
    if call.patch_type == APPLY and not error.go_type:
        # Upstream's own answer; a number past its type wraps there, and is refused here.
        resource = call.resource
        group = f"{resource.group or ''}/{resource.version}, Kind={resource.kind}"
        return status.refuse(
            500,
            "",
            f"failed to convert new object ({call.namespace}/{call.name}; {group}) to proper"
            f" version: unable to convert unstructured object to {group}: error decoding from"
            f" json: {error}",
        )
    return bad_patch(call, str(error), sent) or status.bad_request(
        f"{_cannot_handle(call)}: {error}"
    )


def bad_patch(call: Call, message: str, patched: Any) -> StatusError | None:
    """Return 422 when `call` is a patch whose result cannot be decoded; else None."""
    if not call.patch_type:
        return None
    sent = patched if call.patch is None else call.patch
    text = msgspec.json.encode(msgspec.json.encode(sent).decode()).decode()
    return status.invalid(status.About(), [Cause(f"Invalid value: {text}: {message}", "patch")])


def for_create(
    plane: Plane, call: Call, obj: dict[str, Any], owners: list[Manager] | None = None
) -> None:
    """
    Set the server's fields of a new object, and raise if it is invalid.

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
        signing.set_requester(call, obj)
    rules.default(obj)
    _own_fields(plane, call, obj, None, owners)
    defaults.admit(plane, resource.storage, obj, None)
    rules.create(obj)
    _establish_crd(plane, call, obj)
    named = _with_name(call, meta.get("name", ""))
    _validate(plane, named, "CREATE", obj, None)


def for_update(
    plane: Plane,
    call: Call,
    new: dict[str, Any],
    old: Object,
    owners: list[Manager] | None = None,
) -> dict[str, Any]:
    """
    Return `new` as it may replace `old`: fields of the server kept, forbidden changes refused.
    """
    resource, rules = call.resource, kinds.rules(call.resource.storage)
    changed_fixed = metadata.carry_over(new, old)
    if resource.storage == signing.CSRS:
        new = signing.keep_unchangeable(call, new, old, plane.now())
    elif call.subresource == "status":
        new = _status_only(call, new, old)
    elif call.subresource in POD_PARTS:
        new = podparts.merge_part(call, new, old)
    elif resource.has_status and not _owns_status(call):
        _put(new, "status", old.get("status"))
    rules.update(new, old)
    rules.default(new)
    _own_fields(plane, call, new, old, owners)
    defaults.admit(plane, resource.storage, new, old)
    _establish_crd(plane, call, new)
    if changed_fixed:
        raise status.invalid(call.about, changed_fixed)
    if (resource.custom or rules.generation) and _versioned_part(call, new) != _versioned_part(
        call, old
    ):
        new["metadata"]["generation"] = int(old["metadata"].get("generation", 0)) + 1
    _validate(plane, call, "UPDATE", new, old)
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
    """Record which manager owns which field now."""
    resource = call.resource
    if owners is None:
        # Only a write of the whole object may edit the entries themselves.
        field_managers, tracked = managers.of({"metadata": {}} if call.subresource else new, old)
        # Writes of the plane itself are not tracked until another manager writes the object.
        if tracked and (call.manager or field_managers):
            writer = Manager(
                name=call.manager or PLANE,
                operation=managers.UPDATE,
                api_version=resource.api_version,
                subresource=call.subresource,
            )
            before = None if old is None else call.to_requested_version(old)
            shape = resources.shape(resource)
            # Validation reports entries with the same key.
            with contextlib.suppress(BadFields):
                field_managers = managers.updated(
                    field_managers,
                    writer,
                    call.to_requested_version(new),
                    before,
                    shape,
                    plane.now(),
                )
    else:
        field_managers = owners
    if field_managers:
        new["metadata"]["managedFields"] = managers.encode(field_managers)
    else:
        new["metadata"].pop("managedFields", None)


def _establish_crd(plane: Plane, call: Call, obj: dict[str, Any]) -> None:
    """Set the status of a CRD: it is served from the moment it is stored."""
    if call.resource.storage != CRDS:
        return
    if crds.problems(obj):
        return  # _validate reports them
    name = obj["metadata"].get("name")
    other_crds = [item.obj for item in plane.store.items(CRDS) if item.key.name != name]
    obj["status"] = crds.established(obj, plane.now(), crds.names_taken(obj, other_crds))


def _owns_status(call: Call) -> bool:
    return call.resource.storage == CRDS


def _status_only(call: Call, new: dict[str, Any], old: Object) -> dict[str, Any]:
    merged = dict(old)
    _put(merged, "status", new.get("status"))
    # Upstream lets a built-in's status writer touch metadata (a kubelet sets annotations so).
    merged["metadata"] = dict(old["metadata"] if call.resource.custom else new["metadata"])
    return merged


def _put(obj: dict[str, Any], field: str, value: Any) -> None:
    if value is None:
        obj.pop(field, None)
    else:
        obj[field] = value


def _versioned_part(call: Call, obj: Object) -> Any:
    """Return the part of an object whose changes `generation` counts."""
    if call.resource.custom:
        ignored = {"metadata", "status"} if call.resource.has_status else {"metadata"}
        return {key: value for key, value in obj.items() if key not in ignored}
    return obj.get("spec")


def _with_name(call: Call, name: str) -> Call:
    call.name = name
    return call


def _unchecked_rules(call: Call) -> list[Cause]:
    """Return a cause that CEL rules were not evaluated, if the schema has any."""
    if call.resource.schema is None or cel_rules.plan(call.resource.schema) is None:
        return []
    message = (
        "Invalid value: null: some validation rules were not checked because the object was"
        " invalid; correct the existing errors to complete validation"
    )
    return [Cause(message, "<nil>")]


def _refusal_cause(sentence: str) -> Cause:
    """Return the cause of `spec.field: problem`; clients show its field and its message."""
    field, separator, message = sentence.partition(": ")
    names_field = separator and field.startswith(("spec", "metadata")) and " " not in field
    return Cause(message, field) if names_field else Cause(sentence)


def _cel_problems(call: Call, obj: Object, old: Object | None) -> list[Cause]:
    """
    Return violations of the CEL rules of a CRD, and errors in the rules of a new CRD or policy.
    """
    if call.resource.schema is not None:
        plan = cel_rules.plan(call.resource.schema)
        if plan is None:
            return []
        return cel_rules.violations(
            plan, obj, None if old is None else call.to_requested_version(old)
        )
    if call.resource.storage == CRDS:
        return cel_rules.problems(obj, old)
    if call.resource.storage == POLICIES:
        return policy_programs.problems(obj.get("spec") or {})
    return []


def _validate(plane: Plane, call: Call, operation: str, new: Object, old: Object | None) -> None:
    """Raise the first refusal of a write: validation, permission, admission, policies."""
    resource, rules = call.resource, kinds.rules(call.resource.storage)
    # Definitions are checked as custom objects are: their own finalizer has no path.
    lenient = resource.custom or resource.storage == CRDS
    policies.refuse_unsupported(call)
    causes = metadata.problems(
        new, namespaced=resource.namespaced, name_rule=rules.name, custom=lenient
    )
    converted = call.to_requested_version(new)
    # Only its status was written: the spec was validated when it was written.
    status_only = (
        call.subresource == "status"
        and resource.storage != signing.CSRS
        and old is not None
        and new.get("spec") is old.get("spec")
    )
    passed = ("spec",) if status_only else ()
    misshapen = validate.problems(converted, resources.shape(resource), passed=passed)
    causes += misshapen
    if not misshapen and not status_only:
        causes += rules.validate(new)
        if resource.storage == signing.CSRS:
            causes += signing.problems(new, old)
        # The subresources for parts of a pod have checked their own rules.
        if old is not None and call.subresource not in POD_PARTS:
            causes += rules.change(new, old)
    if not causes:
        causes += _cel_problems(call, converted, old)
    elif resource.custom:
        causes += _unchecked_rules(call)
    if causes:
        raise status.invalid(call.about, causes)
    if resource.storage == signing.CSRS:
        signing.check_permission(plane, call, new, old)
    plane.access.check_escalation(
        call.user, resource.storage, dict(new), None if old is None else dict(old)
    )
    if plane.admit is not None:
        refusals = plane.admit(
            plane.name,
            operation,
            resource.coordinates,
            converted,
            None if old is None else call.to_requested_version(old),
        )
        if refusals:
            raise status.invalid(call.about, [_refusal_cause(refusal) for refusal in refusals])
    if plane.advise is not None and not status_only:
        call.warnings.extend(plane.advise(resource.coordinates, converted))
    if call.view is not None:
        policies.enforce(plane, call, operation, call.view(new), old and call.view(old))
    else:
        policies.enforce(
            plane,
            call,
            operation,
            converted,
            None if old is None else call.to_requested_version(old),
        )
