"""
An informer's objects as structs or views, read once for each version.

An object that cannot be read is logged and left out: the API refuses such objects, but one may come
from another version of Bidplane.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import structlog

from bidplane.api.reading import Invalid
from bidplane.kube.client import EventType, Object
from bidplane.machinery.index import Index
from bidplane.machinery.informer import Informer, Key, key_of, notify_all

log = structlog.get_logger(__name__)


class Named(Protocol):
    """An object with a name: a struct of our own kinds, or a view of an upstream kind."""

    @property
    def name(self) -> str: ...

    @property
    def namespace(self) -> str: ...


T = TypeVar("T", bound=Named)

Read = Callable[[Object], T | Invalid]
TypedHandler = Callable[[EventType, T], None]


class TypedCache(Generic[T]):
    """The objects of an informer, read as `T`. Create it before the informer runs."""

    def __init__(self, informer: Informer, read: Read[T]) -> None:
        self._informer = informer
        self._read = read
        self._objects: dict[Key, T] = {}
        self._invalid: dict[Key, Invalid] = {}
        self._indexes: list[Index[T]] = []
        self._handlers: list[TypedHandler[T]] = []
        informer.on_change(self._changed)

    def __repr__(self) -> str:
        invalid = f", {len(self._invalid)} invalid" if self._invalid else ""
        return f"<TypedCache {self._informer.kind} {len(self._objects)} objects{invalid}>"

    def get(self, namespace: str | None, name: str) -> T | None:
        """Return an object; None if there is none, or it cannot be read."""
        return self._objects.get((namespace or "", name))

    def items(self) -> list[T]:
        """Return all objects that can be read."""
        return list(self._objects.values())

    def in_namespace(self, namespace: str) -> list[T]:
        """Return the objects in a namespace; those that we deleted have a deletionTimestamp."""
        structs = map(self._read, self._informer.in_namespace(namespace))
        return [struct for struct in structs if not isinstance(struct, Invalid)]

    def invalid(self) -> list[Key]:
        """Return the namespaces and names of the objects that cannot be read."""
        return list(self._invalid)

    def is_invalid(self, namespace: str | None, name: str) -> bool:
        """Return True for an object that exists and cannot be read."""
        return (namespace or "", name) in self._invalid

    def on_change(self, handler: TypedHandler[T]) -> None:
        """Register a handler for changes of objects that can be read."""
        self._handlers.append(handler)

    def index(self, key_function: Callable[[T], str]) -> Index[T]:
        """Return an index of the objects by another key; those with key "" are left out."""
        index = Index(key_function)
        self._indexes.append(index)
        return index

    def _changed(self, event: EventType, obj: Object) -> None:
        key = key_of(obj)
        struct = self._read(obj)
        self._invalid.pop(key, None)
        if isinstance(struct, Invalid):
            previous = self._objects.pop(key, None)
            self._update_indexes(key, None)
            if event != "DELETED":
                self._invalid[key] = struct
                log.warning("cannot read", kind=str(self._informer.kind), problem=str(struct))
                return
            if previous is None:
                return
            struct = previous
        elif event == "DELETED":
            self._objects.pop(key, None)
            self._update_indexes(key, None)
        else:
            self._objects[key] = struct
            self._update_indexes(key, struct)
        notify_all(self._informer.kind, self._handlers, event, struct)

    def _update_indexes(self, key: Key, struct: T | None) -> None:
        for index in self._indexes:
            index.update(key, struct)
