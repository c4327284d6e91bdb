"""
An object or a list in the form that was asked for: plain, a Table, or metadata only.

Plain answers are joined from the bytes the store already has; nothing is encoded again.
"""

from __future__ import annotations

from typing import Any

from bidplane.plane.call import Call
from bidplane.plane.feed import Item
from bidplane.plane.http.message import Answer, Request, answer, encode
from bidplane.plane.plane import Plane
from bidplane.plane.verbs.list import Page
from bidplane.wire import negotiate
from bidplane.wire.table import partial, table


def one(plane: Plane, call: Call, request: Request, item: Item) -> Answer:
    match negotiate.form(request.accept):
        case negotiate.TABLE:
            meta = {"resourceVersion": str(item.revision)}
            return answer(_table(plane, call, request, [item], meta))
        case negotiate.PARTIAL:
            return answer(partial(item.obj))
        case _:
            return Answer(raw(call, item))


def many(plane: Plane, call: Call, request: Request, page: Page) -> Answer:
    meta: dict[str, Any] = {"resourceVersion": str(page.revision)}
    if page.token:
        meta["continue"] = page.token
        if page.remaining is not None:
            meta["remainingItemCount"] = page.remaining
    form = negotiate.form(request.accept)
    if form == negotiate.TABLE:
        return answer(_table(plane, call, request, page.items, meta))
    if form == negotiate.PARTIAL:
        body = {
            "kind": "PartialObjectMetadataList",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": meta,
            "items": [partial(item.obj) for item in page.items],
        }
        return answer(body)
    resource = call.resource
    head = encode(
        {"kind": resource.list_kind, "apiVersion": resource.api_version, "metadata": meta}
    )
    items = b",".join([raw(call, item) for item in page.items])
    return Answer(b'%s,"items":[%s]}' % (head[:-1], items))


def raw(call: Call, item: Item) -> bytes:
    resource = call.resource
    if resource.api_version == resource.storage_version:
        return item.raw
    return encode(call.shown(item.obj))


def include(request: Request) -> str:
    return request.query.get("includeObject") or "Metadata"


def _table(
    plane: Plane, call: Call, request: Request, items: list[Item], meta: dict[str, Any]
) -> dict[str, Any]:
    objects = (item.obj for item in items)
    now = plane.clock.now()
    return table(call.resource, objects, meta, now=now, include=include(request))
