"""
GET of many: filtered, in order, in pages of one revision.

A continue token holds the revision of the first page and the last key shown. Later pages are
cut from that revision, so a page never shows what happened in between.
"""

from __future__ import annotations

import base64

import msgspec

from bidplane.plane.call import Call
from bidplane.plane.feed import Item, Key
from bidplane.plane.plane import Plane
from bidplane.wire import selectors, status
from bidplane.wire.selectors import Selector


class ListOptions(msgspec.Struct, frozen=True, kw_only=True):
    labels: str = ""
    fields: str = ""
    limit: int = 0
    token: str = ""
    resource_version: str = ""
    match: str = ""  # resourceVersionMatch


class Page(msgspec.Struct, frozen=True):
    items: list[Item]
    revision: int
    token: str = ""
    remaining: int | None = None


def selector(call: Call, labels: str, fields: str) -> Selector:
    resource = call.resource
    return selectors.labels(labels) & selectors.fields(
        fields, resource.storage, resource.selectable
    )


def revision(text: str) -> int:
    """A resourceVersion from a query: 0 when there is none."""
    if text in ("", "0"):
        return 0
    if not text.isdecimal():
        raise status.bad_request(f'Invalid value: "{text}": must be a non-negative integer')
    return int(text)


def list_objects(plane: Plane, call: Call, wanted: ListOptions) -> Page:
    chosen = selector(call, wanted.labels, wanted.fields)
    store, resource = plane.store, call.resource.storage
    asked = revision(wanted.resource_version)
    if asked > store.revision:
        raise status.too_new(asked, store.revision)
    after: Key | None = None
    at = store.revision
    if wanted.token:
        at, after = _open(wanted.token, resource)
        items = store.items_at(resource, call.namespace, at)
        items = [item for item in items if item.key > after]
    elif wanted.match == "Exact" and asked:
        at = asked
        items = store.items_at(resource, call.namespace, at)
    else:
        items = store.items(resource, call.namespace)
    if chosen:
        items = [item for item in items if chosen.matches(item.obj)]
    if 0 < wanted.limit < len(items):
        shown = items[: wanted.limit]
        # Upstream counts what remains only where no selector could make the count a lie.
        remaining = None if chosen else len(items) - len(shown)
        return Page(shown, at, _token(at, shown[-1].key), remaining)
    return Page(items, at)


def _token(at: int, key: Key) -> str:
    encoded = msgspec.json.encode([at, key.namespace, key.name])
    return base64.urlsafe_b64encode(encoded).decode().rstrip("=")


def _open(token: str, resource: str) -> tuple[int, Key]:
    try:
        raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        at, namespace, name = msgspec.json.decode(raw, type=tuple[int, str, str])
    except (ValueError, msgspec.MsgspecError):
        raise status.bad_request("continue key is not valid") from None
    return at, Key(resource, namespace, name)
