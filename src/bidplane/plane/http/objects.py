"""From a request about objects to the verb that answers it."""

from __future__ import annotations

import contextlib
from typing import Any

from bidplane.errors import NotFound
from bidplane.kube.client import Object
from bidplane.plane import accounts
from bidplane.plane.call import Call, User
from bidplane.plane.feed import Item
from bidplane.plane.http import forms, podstreams, reviews, streams
from bidplane.plane.http.hosting import Hosting
from bidplane.plane.http.message import Answer, Request, Send, answer, duplicates
from bidplane.plane.plane import Plane
from bidplane.plane.verbs import (
    apply,
    bind,
    create,
    delete,
    evict,
    get,
    patch,
    scale,
    update,
    watch,
)
from bidplane.plane.verbs import list as listing
from bidplane.wire import managers, status, yaml
from bidplane.wire.status import Cause

_VALIDATIONS = ("Ignore", "Warn", "Strict")


def streams_forever(request: Request) -> bool:
    """Whether the answer may last: a watch, a pod's log, a connection that is handed on."""
    last = request.path.rstrip("/").rpartition("/")[2]
    if last in podstreams.TUNNELS and request.upgrade is not None:
        return True
    if podstreams.is_proxied(request.path):
        return True
    return request.method == "GET" and (request.flag("watch") or last == "log")


async def handle(
    planes: Hosting, plane: Plane, user: User, request: Request, send: Send
) -> Answer | None:
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
            return forms.one(plane, call, request, get.get(plane, call))
        case "GET" | "HEAD", False:
            if request.flag("watch"):
                await _watch(plane, call, request, send)
                return None
            return _list(plane, call, request)
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


def _options(call: Call, request: Request) -> None:
    """The options every write takes."""
    validation = request.query.get("fieldValidation") or "Warn"
    if validation not in _VALIDATIONS:
        raise status.bad_request(
            f'fieldValidation: Unsupported value: "{validation}": supported values: "Ignore",'
            ' "Strict", "Warn"'
        )
    call.field_validation = validation
    call.dry_run = _dry_run(request.query.get("dryRun", ""))
    call.manager = _manager(request)


def _manager(request: Request) -> str:
    """Who writes: as the client says, or the program that its user agent names."""
    given = request.query.get("fieldManager", "")
    if len(given) > managers.NAME_LIMIT:
        words = f"Too long: may not be more than {managers.NAME_LIMIT} bytes"
        cause = Cause(words, "fieldManager", "FieldValueTooLong")
        raise status.invalid(status.About(group="meta.k8s.io", kind="PatchOptions"), [cause])
    agent = request.header(b"user-agent").partition("/")[0]
    named = given or "".join(filter(str.isprintable, agent))[: managers.NAME_LIMIT]
    return named or "unknown"


def _dry_run(text: str) -> bool:
    if text not in ("", "All"):
        raise status.bad_request(f'dryRun: Unsupported value: "{text}": supported values: "All"')
    return text == "All"


# Reading.


def _list(plane: Plane, call: Call, request: Request) -> Answer:
    query = request.query
    wanted = listing.ListOptions(
        labels=query.get("labelSelector", ""),
        fields=query.get("fieldSelector", ""),
        limit=request.number("limit") or 0,
        token=query.get("continue", ""),
        resource_version=query.get("resourceVersion", ""),
        match=query.get("resourceVersionMatch", ""),
    )
    return forms.many(plane, call, request, listing.list_objects(plane, call, wanted))


async def _watch(plane: Plane, call: Call, request: Request, send: Send, *, only: str = "") -> None:
    query = request.query
    fields = query.get("fieldSelector", "")
    if only:
        fields = f"{fields},metadata.name={only}" if fields else f"metadata.name={only}"
    initial = query.get("sendInitialEvents")
    wanted = watch.WatchOptions(
        labels=query.get("labelSelector", ""),
        fields=fields,
        resource_version=query.get("resourceVersion", ""),
        match=query.get("resourceVersionMatch", ""),
        bookmarks=request.flag("allowWatchBookmarks"),
        initial=None if initial is None else request.flag("sendInitialEvents"),
    )
    started = await watch.begin(plane, call, wanted)
    await streams.watch(plane, call, request, send, started)


# Writing.


async def _create(plane: Plane, call: Call, request: Request) -> Answer:
    _options(call, request)
    body = await _object(call, request)
    call.duplicates = await _duplicates(call, request, body)
    return answer(await create.create(plane, call, body), 201)


async def _update(plane: Plane, call: Call, request: Request) -> Answer:
    _options(call, request)
    body = await _object(call, request)
    call.duplicates = await _duplicates(call, request, body)
    return answer(await update.update(plane, call, body))


async def _object(call: Call, request: Request) -> Any:
    if not await request.body():
        raise status.bad_request(
            f"the object provided is unrecognized (must be of type {call.resource.kind}):"
            " the body is empty"
        )
    return await request.decoded()


async def _duplicates(call: Call, request: Request, decoded: Any) -> list[str]:
    """Fields that a JSON body names twice; only the last of them was read."""
    if call.field_validation == "Ignore":
        return []
    return duplicates(await request.body(), decoded)


async def _patch(plane: Plane, call: Call, request: Request) -> Answer:
    _options(call, request)
    media_type = request.media_type
    _patch_options(request, media_type)
    if media_type == patch.APPLY:
        config = yaml.load(await request.body())
        made, new = await apply.apply(plane, call, config, force=request.flag("force"))
        return answer(made, 201 if new else 200)
    allowed = patch.accepted(call)
    body = await request.decoded(*allowed) if media_type in allowed else {}
    return answer(await patch.patch(plane, call, body, media_type))


def _patch_options(request: Request, media_type: str) -> None:
    cause = None
    if media_type == patch.APPLY:
        if not request.query.get("fieldManager"):
            words = "Required value: is required for apply patch"
            cause = Cause(words, "fieldManager", "FieldValueRequired")
    elif "force" in request.query:
        words = "Forbidden: may not be specified for non-apply patch"
        cause = Cause(words, "force", "FieldValueForbidden")
    if cause is not None:
        raise status.invalid(status.About(group="meta.k8s.io", kind="PatchOptions"), [cause])


async def _delete_options(call: Call, request: Request) -> delete.DeleteOptions:
    body = await request.decoded()
    if not isinstance(body, dict):
        raise status.bad_request("DeleteOptions must be a JSON object")
    call.dry_run = _dry_run(request.query.get("dryRun", "")) or "All" in (body.get("dryRun") or ())
    return delete.options(body, request.query)


async def _delete(plane: Plane, call: Call, request: Request) -> Answer:
    wanted = await _delete_options(call, request)
    item, gone = await delete.delete(plane, call, wanted)
    if gone and call.resource.storage != "pods":
        return answer(status.deleted(call.about, item.uid))
    return _item(call, item)


async def _delete_all(plane: Plane, call: Call, request: Request) -> Answer:
    if "deletecollection" not in call.resource.verbs:
        raise status.method_not_allowed(call.about)
    wanted = await _delete_options(call, request)
    query = request.query
    chosen = listing.ListOptions(
        labels=query.get("labelSelector", ""), fields=query.get("fieldSelector", "")
    )
    page = listing.list_objects(plane, call, chosen)
    for item in page.items:
        one = Call(
            resource=call.resource,
            namespace=item.key.namespace,
            name=item.key.name,
            user=call.user,
            dry_run=call.dry_run,
        )
        with contextlib.suppress(NotFound):  # gone meanwhile, as asked
            await delete.delete(plane, one, wanted)
    return forms.many(plane, call, request, page)


def _item(call: Call, item: Item) -> Answer:
    return answer(call.shown(item.obj))


# Subresources.


async def _subresource(
    planes: Hosting, plane: Plane, call: Call, request: Request, send: Send
) -> Answer | None:
    match request.method, call.subresource:
        case "GET", "status" | "approval":
            return forms.one(plane, call, request, get.get(plane, call))
        case "GET", "resize" | "ephemeralcontainers":
            return forms.one(plane, call, request, get.get(plane, call))
        case "PUT", "status" | "approval" | "resize" | "ephemeralcontainers":
            return await _update(plane, call, request)
        case "PATCH", "status" | "approval" | "resize" | "ephemeralcontainers":
            return await _patch(plane, call, request)
        case "GET", "scale":
            return answer(scale.get(plane, call))
        case "PUT", "scale":
            _options(call, request)
            return answer(await scale.put(plane, call, await request.decoded()))
        case "PATCH", "scale":
            _options(call, request)
            media = request.media_type
            body = await request.decoded(patch.JSON, patch.MERGE, patch.STRATEGIC)
            return answer(await scale.patch(plane, call, body, media))
        case "GET" | "POST", "exec" | "attach" | "portforward":
            await podstreams.tunnel(planes, plane, call, request)
            return None
        case _, "proxy" if call.resource.plural == "pods":
            await podstreams.proxy(planes, plane, call, request, send)
            return None
        case "PUT", "finalize":
            return await _finalize(plane, call, request)
        case "POST", "binding":
            body = await _plain(call, request)
            await bind.bind(plane, call, body)
            return answer(_success(), 201)
        case "POST", "eviction":
            body = await _plain(call, request)
            await evict.evict(plane, call, body)
            return answer(_success(), 201)
        case "POST", "token":
            body = await _plain(call, request)
            return answer(accounts.request(plane, planes.tokens, call, body), 201)
        case "GET", "log":
            return await streams.log(planes, plane, call, request, send)
        case _:
            what = f"{call.resource.plural}/{call.subresource}"
            raise status.refuse(
                501, "NotImplemented", f"{request.method} of {what} is not supported by this plane"
            )


async def _plain(call: Call, request: Request) -> dict[str, Any]:
    _options(call, request)
    body = await request.decoded()
    if not isinstance(body, dict):
        raise status.bad_request("the body must be a JSON object")
    return body


async def _finalize(plane: Plane, call: Call, request: Request) -> Answer:
    """PUT namespaces/NAME/finalize: only spec.finalizers changes."""
    body = await _plain(call, request)
    latest = plane.store.latest(call.key)
    if latest is None:
        raise status.not_found(call.about)
    spec = {**(latest.obj.get("spec") or {})}
    spec["finalizers"] = list((body.get("spec") or {}).get("finalizers") or ())
    if not spec["finalizers"]:
        del spec["finalizers"]
    new = {**latest.obj, "metadata": dict(latest.obj["metadata"]), "spec": spec}
    item = await update.keep(plane, latest, new)
    return _item(call, item)


def _success() -> Object:
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
