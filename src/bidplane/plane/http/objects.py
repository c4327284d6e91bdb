"""Dispatch of a request about objects to the verb that answers it."""

from __future__ import annotations

import contextlib
from typing import Any

from bidplane.api.gate.action import Action
from bidplane.errors import NotFound
from bidplane.gate.proposing import propose_instead
from bidplane.gate.service import Gate, NeedsApproval, Permit
from bidplane.http.asgi import Send
from bidplane.http.replies import Reply, json_reply
from bidplane.kube.client import Object
from bidplane.plane.admission import policies
from bidplane.plane.admission.changes import Unpermitted
from bidplane.plane.call import APPLY, Call, User
from bidplane.plane.http import forms, podstreams, reviews, streams
from bidplane.plane.http.hosting import Hosting
from bidplane.plane.http.message import PlaneRequest, duplicates
from bidplane.plane.identity import accounts
from bidplane.plane.plane import Plane
from bidplane.plane.storage.feed import Item
from bidplane.plane.verbs import (
    apply,
    bind,
    create,
    delete,
    evict,
    get,
    patch,
    prepare,
    scale,
    update,
    watch,
)
from bidplane.plane.verbs import list as listing
from bidplane.wire import status, yaml
from bidplane.wire.patches import managers
from bidplane.wire.status import Cause

_MOST_PERMITS = 256  # for one request
MANY = 1000  # objects
MANY_BYTES = 4 << 20  # of objects
_VALIDATIONS = ("Ignore", "Warn", "Strict")


def streams_forever(request: PlaneRequest) -> bool:
    """
    Return whether the response may last: a watch, a pod's log, a connection that is handed on.
    """
    last = request.path.rstrip("/").rpartition("/")[2]
    if last in podstreams.TUNNELS and request.upgrade is not None:
        return True
    if podstreams.is_proxied(request.path):
        return True
    return request.method == "GET" and (request.flag("watch") or last == "log")


def snapshot_bytes(plane: Plane, request: PlaneRequest) -> int:
    """Return the bytes of the many or large objects that the response needs at once; else 0."""
    target, query = request.target, request.query
    if target is None or target.name or request.method not in ("GET", "DELETE"):
        return 0
    resource = plane.registry.find(target.group, target.version, target.plural)
    if resource is None:
        return 0
    count, size = plane.store.count(resource.storage), plane.store.bytes_of(resource.storage)
    if count <= MANY and size <= MANY_BYTES:
        return 0
    if request.flag("watch"):
        initial = request.flag("sendInitialEvents")
        return size if initial or query.get("resourceVersion", "0") in ("", "0") else 0
    selection = query.get("labelSelector") or query.get("fieldSelector") or query.get("continue")
    limit = query.get("limit", "0")
    if selection or not limit.isdecimal() or not 0 < int(limit) <= MANY:
        return size
    page = size * int(limit) // max(count, 1)
    return page if page > MANY_BYTES else 0


async def handle(
    planes: Hosting, plane: Plane, user: User, request: PlaneRequest, send: Send
) -> Reply | None:
    """Answer a request about objects; None when the response was sent already."""
    if plane.gate is None or request.method in ("GET", "HEAD"):
        return await _answer(planes, plane, user, request, send, ())
    return await _answer_permitted(plane.gate, planes, plane, user, request, send)


async def _answer_permitted(
    gate: Gate, planes: Hosting, plane: Plane, user: User, request: PlaneRequest, send: Send
) -> Reply | None:
    """
    Answer a write to the host. Each time it stops at actions without a permit, the gate is asked,
    and it runs again. A cancelled request leaves its permits open: what came of them is looked up
    at the next start.
    """
    permits: list[Permit] = []
    try:
        while True:
            permitted = tuple(action for permit in permits for action in permit.actions)
            try:
                reply = await _answer(planes, plane, user, request, send, permitted)
                break
            except Unpermitted as change:
                if len(permits) >= _MOST_PERMITS:
                    message = f"a request makes at most {_MOST_PERMITS} changes that are judged"
                    raise status.bad_request(message) from None
                request.warnings.clear()
                permits.append(await _ask(gate, change))
    except Exception as error:
        for permit in permits:
            await gate.finish(permit, str(error) or type(error).__name__)
        raise
    for permit in permits:
        await gate.finish(permit)
    return reply


async def _ask(gate: Gate, change: Unpermitted) -> Permit:
    """Return the gate's permit; raise its refusal, which names the Proposal made instead."""
    try:
        return await gate.permit(change.actor, change.actions, dry_run=change.dry_run)
    except NeedsApproval as needs:
        if change.dry_run:
            raise status.refuse(403, "Forbidden", str(needs)) from None
        raise await propose_instead(gate, needs) from None


async def _answer(
    planes: Hosting,
    plane: Plane,
    user: User,
    request: PlaneRequest,
    send: Send,
    permitted: tuple[Action, ...],
) -> Reply | None:
    """Answer a request that may make the permitted changes."""
    target = request.target
    if target is None:
        raise status.no_such_path()
    resource = plane.registry.find(target.group, target.version, target.plural)
    if resource is None:
        raise status.no_such_path()
    if target.namespace and not resource.namespaced:
        raise status.no_such_path()
    call = Call(
        resource=resource,
        namespace=target.namespace,
        name=target.name,
        subresource=target.subresource,
        user=user,
        enforced=True,
        permitted=permitted,
        warnings=request.warnings,
    )
    if resource.deprecation:
        call.warnings.append(resource.deprecation)
    if resource.namespaced and not target.namespace:
        if target.name:
            raise status.no_such_path()
        if request.method == "POST" and not reviews.handles(resource):
            raise status.method_not_allowed(call.about)
    if reviews.handles(resource):
        return await reviews.review(planes, plane, call, request)
    if target.subresource:
        if target.subresource not in resource.subresources:
            raise status.no_such_path()
        return await _subresource(planes, plane, call, request, send)
    match request.method, bool(target.name):
        case "GET" | "HEAD", True:
            if request.flag("watch"):
                call.name = ""
                await _watch(plane, call, request, send, only=target.name)
                return None
            return forms.object_response(plane, call, request, get.get(plane, call))
        case "GET" | "HEAD", False:
            if request.flag("watch"):
                await _watch(plane, call, request, send)
                return None
            return await _list(plane, call, request)
        case "POST", False:
            return await _create(plane, call, request)
        case "PUT", True:
            return await _update(plane, call, request)
        case "PATCH", True:
            return await _patch(plane, call, request)
        case "DELETE", True:
            return await _delete(plane, call, request)
        case "DELETE", False:
            return await _delete_all(plane, call, request)
        case _:
            raise status.method_not_allowed(call.about)


def _read_write_options(call: Call, request: PlaneRequest) -> None:
    """Set the options that every write takes: field validation, dry run, field manager."""
    validation = request.query.get("fieldValidation") or "Warn"
    if validation not in _VALIDATIONS:
        raise status.bad_request(
            f'fieldValidation: Unsupported value: "{validation}": supported values: "Ignore",'
            ' "Strict", "Warn"'
        )
    call.field_validation = validation
    call.dry_run = _dry_run(request.query.get("dryRun", ""))
    call.manager = _manager(request)


def _manager(request: PlaneRequest) -> str:
    """Return the field manager: the requested name, or the program that the user agent names."""
    requested = request.query.get("fieldManager", "")
    if len(requested) > managers.NAME_LIMIT:
        message = f"Too long: may not be more than {managers.NAME_LIMIT} bytes"
        cause = Cause(message, "fieldManager", "FieldValueTooLong")
        raise status.invalid(status.About(group="meta.k8s.io", kind="PatchOptions"), [cause])
    agent = request.header(b"user-agent").partition("/")[0]
    name = requested or "".join(filter(str.isprintable, agent))[: managers.NAME_LIMIT]
    return name or "unknown"


def _dry_run(text: str) -> bool:
    if text not in ("", "All"):
        raise status.bad_request(f'dryRun: Unsupported value: "{text}": supported values: "All"')
    return text == "All"


# Reading.


async def _list(plane: Plane, call: Call, request: PlaneRequest) -> Reply:
    query = request.query
    list_options = listing.ListOptions(
        labels=query.get("labelSelector", ""),
        fields=query.get("fieldSelector", ""),
        limit=request.number("limit") or 0,
        token=query.get("continue", ""),
        resource_version=query.get("resourceVersion", ""),
        match=query.get("resourceVersionMatch", ""),
    )
    page = await listing.list_objects(plane, call, list_options)
    return await forms.list_response(plane, call, request, page)


async def _watch(
    plane: Plane, call: Call, request: PlaneRequest, send: Send, *, only: str = ""
) -> None:
    query = request.query
    fields = query.get("fieldSelector", "")
    if only:
        fields = f"{fields},metadata.name={only}" if fields else f"metadata.name={only}"
    initial = query.get("sendInitialEvents")
    watch_options = watch.WatchOptions(
        labels=query.get("labelSelector", ""),
        fields=fields,
        resource_version=query.get("resourceVersion", ""),
        match=query.get("resourceVersionMatch", ""),
        bookmarks=request.flag("allowWatchBookmarks"),
        initial=None if initial is None else request.flag("sendInitialEvents"),
    )
    started = await watch.begin(plane, call, watch_options)
    await streams.watch(plane, call, request, send, started, request.first_sent)


# Writing.


async def _create(plane: Plane, call: Call, request: PlaneRequest) -> Reply:
    _read_write_options(call, request)
    body = await _required_body(call, request)
    call.duplicates = await _duplicates(call, request, body)
    return json_reply(await create.create(plane, call, body), 201)


async def _update(plane: Plane, call: Call, request: PlaneRequest) -> Reply:
    _read_write_options(call, request)
    body = await _required_body(call, request)
    call.duplicates = await _duplicates(call, request, body)
    return json_reply(await update.update(plane, call, body))


async def _required_body(call: Call, request: PlaneRequest) -> Any:
    if not await request.body():
        raise status.bad_request(
            f"the object provided is unrecognized (must be of type {call.resource.kind}):"
            " the body is empty"
        )
    return await request.decoded()


async def _duplicates(call: Call, request: PlaneRequest, decoded: Any) -> list[str]:
    """Return the fields that a JSON body names twice; only the last of them was read."""
    if call.field_validation == "Ignore":
        return []
    return duplicates(await request.body(), decoded)


async def _patch(plane: Plane, call: Call, request: PlaneRequest) -> Reply:
    _read_write_options(call, request)
    media_type = request.media_type
    _patch_options(request, media_type)
    if media_type == APPLY:
        config = yaml.load(await request.body())
        applied, is_new = await apply.apply(plane, call, config, force=request.flag("force"))
        return json_reply(applied, 201 if is_new else 200)
    allowed = patch.accepted_media_types(call)
    body = await request.decoded(*allowed) if media_type in allowed else {}
    return json_reply(await patch.patch(plane, call, body, media_type))


def _patch_options(request: PlaneRequest, media_type: str) -> None:
    cause = None
    if media_type == APPLY:
        if not request.query.get("fieldManager"):
            message = "Required value: is required for apply patch"
            cause = Cause(message, "fieldManager", "FieldValueRequired")
    elif "force" in request.query:
        message = "Forbidden: may not be specified for non-apply patch"
        cause = Cause(message, "force", "FieldValueForbidden")
    if cause is not None:
        raise status.invalid(status.About(group="meta.k8s.io", kind="PatchOptions"), [cause])


async def _delete_options(call: Call, request: PlaneRequest) -> delete.DeleteOptions:
    body = prepare.body_of(await request.decoded(), "v1", "DeleteOptions")
    call.dry_run = _dry_run(request.query.get("dryRun", "")) or "All" in (body.get("dryRun") or ())
    return delete.options(body, request.query, request.number("gracePeriodSeconds"))


async def _delete(plane: Plane, call: Call, request: PlaneRequest) -> Reply:
    delete_options = await _delete_options(call, request)
    item, is_gone = await delete.delete(plane, call, delete_options)
    if is_gone and call.resource.storage != "pods":
        return json_reply(status.deleted(call.about, item.uid))
    return _item_response(call, item)


async def _delete_all(plane: Plane, call: Call, request: PlaneRequest) -> Reply:
    if "deletecollection" not in call.resource.verbs:
        raise status.method_not_allowed(call.about)
    delete_options = await _delete_options(call, request)
    query = request.query
    list_options = listing.ListOptions(
        labels=query.get("labelSelector", ""), fields=query.get("fieldSelector", "")
    )
    page = await listing.list_objects(plane, call, list_options)
    for item in page.items:
        item_call = Call(
            resource=call.resource,
            namespace=item.key.namespace,
            name=item.key.name,
            user=call.user,
            enforced=call.enforced,
            permitted=call.permitted,
            dry_run=call.dry_run,
            warnings=call.warnings,
        )
        with contextlib.suppress(NotFound):  # gone meanwhile, as asked
            await delete.delete(plane, item_call, delete_options)
    return await forms.list_response(plane, call, request, page)


def _item_response(call: Call, item: Item) -> Reply:
    return json_reply(call.to_requested_version(item.obj))


# Subresources.


async def _subresource(
    planes: Hosting, plane: Plane, call: Call, request: PlaneRequest, send: Send
) -> Reply | None:
    match request.method, call.subresource:
        case "GET", "status" | "approval":
            return forms.object_response(plane, call, request, get.get(plane, call))
        case "GET", "resize" | "ephemeralcontainers":
            return forms.object_response(plane, call, request, get.get(plane, call))
        case "PUT", "status" | "approval" | "resize" | "ephemeralcontainers":
            return await _update(plane, call, request)
        case "PATCH", "status" | "approval" | "resize" | "ephemeralcontainers":
            return await _patch(plane, call, request)
        case "GET", "scale":
            return json_reply(scale.get(plane, call))
        case "PUT", "scale":
            _read_write_options(call, request)
            return json_reply(await scale.put(plane, call, await request.decoded()))
        case "PATCH", "scale":
            _read_write_options(call, request)
            media = request.media_type
            body = await request.decoded(patch.JSON, patch.MERGE, patch.STRATEGIC)
            return json_reply(await scale.patch(plane, call, body, media))
        case "GET" | "POST", "exec" | "attach" | "portforward":
            policies.enforce(plane, call, "CONNECT", podstreams.options(call, request), None)
            await podstreams.tunnel(planes, plane, call, request)
            return None
        case _, "proxy" if call.resource.plural == "pods":
            await podstreams.proxy(planes, plane, call, request, send)
            return None
        case "PUT", "finalize":
            return await _finalize(plane, call, request)
        case "POST", "binding":
            body = await _subresource_body(call, request)
            policies.enforce(plane, call, "CREATE", body, None)
            await bind.bind(plane, call, body)
            return json_reply(_success(), 201)
        case "POST", "eviction":
            body = await _subresource_body(call, request)
            policies.enforce(plane, call, "CREATE", body, None)
            await evict.evict(plane, call, body)
            return json_reply(_success(), 201)
        case "POST", "token":
            body = await _subresource_body(call, request)
            policies.enforce(plane, call, "CREATE", body, None)
            return json_reply(accounts.request(plane, planes.tokens, call, body), 201)
        case "GET", "log":
            return await streams.log(planes, plane, call, request, send)
        case _:
            path = f"{call.resource.plural}/{call.subresource}"
            raise status.refuse(
                501, "NotImplemented", f"{request.method} of {path} is not supported by this plane"
            )


async def _subresource_body(call: Call, request: PlaneRequest) -> dict[str, Any]:
    _read_write_options(call, request)
    kind = call.resource.subresources[call.subresource]
    api_version = f"{kind.group}/{kind.version}" if kind.group else kind.version
    return prepare.body_of(await request.decoded(), api_version, kind.kind)


async def _finalize(plane: Plane, call: Call, request: PlaneRequest) -> Reply:
    """Answer PUT namespaces/NAME/finalize, which changes only spec.finalizers."""
    body = await _subresource_body(call, request)
    latest = plane.store.latest(call.key)
    if latest is None:
        raise status.not_found(call.about)
    version = (body.get("metadata") or {}).get("resourceVersion")
    if version not in (None, "", str(latest.revision)):
        raise status.conflict(call.about, status.MODIFIED)
    spec = {**(latest.obj.get("spec") or {})}
    spec["finalizers"] = list((body.get("spec") or {}).get("finalizers") or ())
    if not spec["finalizers"]:
        del spec["finalizers"]
    new = {**latest.obj, "metadata": dict(latest.obj["metadata"]), "spec": spec}
    policies.enforce(plane, call, "UPDATE", new, latest.obj)
    if call.dry_run:
        return json_reply(call.to_requested_version(new))
    return _item_response(call, await update.write_or_remove(plane, latest, new))


def _success() -> Object:
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
