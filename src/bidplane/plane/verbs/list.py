"""
GET of many: filtered, in order, in pages of one revision.

A continue token holds the revision of the first page and the last key looked at. Later pages
are cut from that revision, so a page never shows what happened in between. A page begins at a
search in the order that the store keeps, and ends when it is full: what it costs depends on what
it looks at, not on how many objects there are. Long looks are done in slices; see `turns`.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable

import msgspec

from bidplane.plane.call import Call
from bidplane.plane.plane import Plane
from bidplane.plane.storage.feed import Item, Key
from bidplane.plane.turns import CHARACTER, WorkSlice
from bidplane.wire import selectors, status
from bidplane.wire.selectors import Selector

_PIECE = 2000  # objects of an earlier revision that are put together at once


class ListOptions(msgspec.Struct, frozen=True, kw_only=True):
    labels: str = ""
    fields: str = ""
    limit: int = 0
    token: str = ""
    resource_version: str = ""
    match: str = ""  # resourceVersionMatch


class ListPage(msgspec.Struct, frozen=True):
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
    """Return the revision of a resourceVersion in a query: 0 when there is none."""
    if text in ("", "0"):
        return 0
    if not (text.isascii() and text.isdecimal() and len(text) <= 20 and int(text) < 2**64):
        text = text if len(text) <= 40 else f"{text[:40]}…"
        raise status.bad_request(f'Invalid value: "{text}": must be a non-negative integer')
    return int(text)


async def list_objects(plane: Plane, call: Call, list_options: ListOptions) -> ListPage:
    """Return one page of the objects that match, in the order of their keys."""
    selected = selector(call, list_options.labels, list_options.fields)
    resource = call.resource.storage
    requested = revision(list_options.resource_version)
    if requested > plane.store.revision:
        raise status.too_new(requested, plane.store.revision)
    after: Key | None = None
    start = 0  # now
    if list_options.token:
        start, after = _decode_token(list_options.token, resource)
    elif list_options.match == "Exact":
        start = requested
    limit = max(0, list_options.limit)
    if not selected and not start:
        items, following = plane.store.page(resource, call.namespace, after, limit)
        return _page(items, plane.store.revision, following, counted=True)
    scan = _Scan(plane, call, start, after)
    if not selected:
        items, following = await scan.take(limit)
        return _page(items, scan.revision, following, counted=True)
    matches = matcher(selected, labels_only=not list_options.fields)
    items, last = await scan.select(matches, len(selected.text) * CHARACTER, limit)
    # Upstream counts what remains only where no selector could make the count a lie.
    return _page(items, scan.revision, scan.following, counted=False, last=last)


def matcher(selected: Selector, *, labels_only: bool) -> Callable[[Item], bool]:
    """Return a test that decodes no more of an object than the selector looks at."""
    if labels_only:
        return lambda item: selected.matches(item.labelled())
    return lambda item: selected.matches(item.peek())


def _page(
    items: list[Item], at_revision: int, following: int, *, counted: bool, last: Key | None = None
) -> ListPage:
    if not following:
        return ListPage(items, at_revision)
    token = _encode_token(at_revision, last or items[-1].key)
    return ListPage(items, at_revision, token, following if counted else None)


class _Scan:
    """
    A walk through the objects of one resource at one revision.

    For the current revision, it is a copy of the references. For an earlier revision, it is read
    piece by piece: `Gone` when the history ends meanwhile, and the client begins anew.
    """

    def __init__(self, plane: Plane, call: Call, at: int, after: Key | None) -> None:
        self._store = plane.store
        self._slice = WorkSlice(plane.turns, plane.name)
        self._where = call.resource.storage, call.namespace
        self._at, self._after = at, after
        self._all: list[Item] | None = None
        self.revision = at or self._store.revision
        self.following = 0  # how many were not looked at
        if not at:
            self._all, _ = self._store.page(*self._where, after)

    async def take(self, limit: int) -> tuple[list[Item], int]:
        """Return the next objects, all if `limit` is 0, and how many follow."""
        items: list[Item] = []
        async for piece in self._pieces(limit):
            items += piece
            if limit and len(items) >= limit:
                break
        return items, self.following

    async def select(
        self, matches: Callable[[Item], bool], cost: int, limit: int
    ) -> tuple[list[Item], Key | None]:
        """Return the next objects that match, and the last key that was looked at."""
        selected: list[Item] = []
        async for piece in self._pieces(0):
            for index, item in enumerate(piece):
                if self._slice.spend(len(item.raw) + cost):
                    await self._slice.rest()
                if matches(item):
                    selected.append(item)
                    if limit and len(selected) == limit:
                        self.following += len(piece) - index - 1
                        return selected, item.key
        return selected, None

    async def _pieces(self, limit: int) -> AsyncIterator[list[Item]]:
        if self._all is not None:
            yield self._all
            return
        while True:
            most = min(limit or _PIECE, _PIECE)
            piece, self.following = self._store.page_at(*self._where, self._at, self._after, most)
            if not piece:
                return
            self._after = piece[-1].key
            yield piece
            if limit:
                limit -= len(piece)
            if not self.following:
                return
            await self._slice.rest()


def _encode_token(at_revision: int, key: Key) -> str:
    encoded = msgspec.json.encode([at_revision, key.namespace, key.name])
    return base64.urlsafe_b64encode(encoded).decode().rstrip("=")


def _decode_token(token: str, resource: str) -> tuple[int, Key]:
    try:
        raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        at_revision, namespace, name = msgspec.json.decode(raw, type=tuple[int, str, str])
    except (ValueError, msgspec.MsgspecError):
        raise status.bad_request("continue key is not valid") from None
    return at_revision, Key(resource, namespace, name)
