"""
An object or a list in the requested form: plain, a Table, or metadata only.

Plain responses are joined from the bytes the store already has; nothing is encoded again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from functools import partial
from typing import Any

from bidplane.http.replies import Reply, encode, json_reply
from bidplane.plane.call import Call
from bidplane.plane.http.message import PlaneRequest
from bidplane.plane.output import OutputBudget
from bidplane.plane.plane import Plane
from bidplane.plane.storage.feed import Item
from bidplane.plane.turns import WorkSlice
from bidplane.plane.verbs.list import ListPage
from bidplane.wire import negotiate
from bidplane.wire.table import partial as partial_metadata
from bidplane.wire.table import table

_SMALL = 500  # objects: a list that is sent at once
_CHUNK_BYTES = 128 << 10
# How much more work than joining bytes it is to decode an object, and to make a row of it.
_WEIGHTS = {negotiate.PARTIAL: 4, negotiate.TABLE: 12}


def object_response(plane: Plane, call: Call, request: PlaneRequest, item: Item) -> Reply:
    """Return one object in the requested form."""
    match negotiate.form(request.accept):
        case negotiate.TABLE:
            meta = {"resourceVersion": str(item.revision)}
            return json_reply(_table(plane, call, request, [item], meta))
        case negotiate.PARTIAL:
            return json_reply(partial_metadata(item.obj))
        case _:
            return Reply(stored_bytes(call, item))


async def list_response(plane: Plane, call: Call, request: PlaneRequest, page: ListPage) -> Reply:
    """Return a page of objects in the requested form; a long one in chunks."""
    meta: dict[str, Any] = {"resourceVersion": str(page.revision)}
    if page.token:
        meta["continue"] = page.token
        if page.remaining is not None:
            meta["remainingItemCount"] = page.remaining
    form = negotiate.form(request.accept)
    if form == negotiate.TABLE:
        head = table(call.resource, (), meta, now=0, include="")
        del head["rows"]
        rows, encoded = "rows", _row_encoder(plane, call, request)
    else:
        resource = call.resource
        kind, version = resource.list_kind, resource.api_version
        encoded = partial(stored_bytes, call)
        if form == negotiate.PARTIAL:
            kind, version = "PartialObjectMetadataList", "meta.k8s.io/v1"
            encoded = _metadata
        head = {"kind": kind, "apiVersion": version, "metadata": meta}
        rows = "items"
    weight = _WEIGHTS.get(form, 1)
    chunks = _chunks(plane, request.output, encode(head), rows, encoded, page.items, weight)
    if len(page.items) > _SMALL or sum(len(item.raw) for item in page.items) > _CHUNK_BYTES:
        return Reply(b"", chunks=chunks)
    return Reply(b"".join([chunk async for chunk in chunks]))


async def _chunks(
    plane: Plane,
    output: OutputBudget,
    head: bytes,
    rows: str,
    encoded: Callable[[Item], bytes],
    items: list[Item],
    weight: int,
) -> AsyncGenerator[bytes]:
    """
    Yield a list as JSON, `head` and then an array `rows`, in chunks of about `_CHUNK_BYTES`.

    A chunk is made when there is room for it, and has its room until the next is asked for.
    """
    work = WorkSlice(plane.turns, plane.name)
    before = b'%s,"%s":[' % (head[:-1], rows.encode())
    for batch in _batches(items):
        async with output.room(sum(len(item.raw) for item in batch)):
            parts = []
            for item in batch:
                if work.spend(len(item.raw) * weight):
                    await work.rest()
                parts.append(encoded(item))
            yield before + b",".join(parts)
        before = b","
    yield b"]}" if items else before + b"]}"


def _batches(items: list[Item]) -> Iterator[list[Item]]:
    """Yield the objects in lists of about `_CHUNK_BYTES`."""
    batch: list[Item] = []
    size = 0
    for item in items:
        batch.append(item)
        size += len(item.raw)
        if size >= _CHUNK_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _metadata(item: Item) -> bytes:
    return encode(partial_metadata(item.peek()))


def _row_encoder(plane: Plane, call: Call, request: PlaneRequest) -> Callable[[Item], bytes]:
    now, include_object = plane.clock.now(), include_policy(request)

    def row(item: Item) -> bytes:
        rows = table(
            call.resource, (item.peek(),), {}, now=now, include=include_object, headers=False
        )
        return encode(rows["rows"][0])

    return row


def stored_bytes(call: Call, item: Item) -> bytes:
    resource = call.resource
    if resource.api_version == resource.storage_version:
        return item.raw
    return encode(call.to_requested_version(item.peek()))


def include_policy(request: PlaneRequest) -> str:
    return request.query.get("includeObject") or "Metadata"


def _table(
    plane: Plane, call: Call, request: PlaneRequest, items: list[Item], meta: dict[str, Any]
) -> dict[str, Any]:
    objects = (item.obj for item in items)
    now = plane.clock.now()
    return table(call.resource, objects, meta, now=now, include=include_policy(request))
