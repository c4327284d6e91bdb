"""JSON patch (RFC 6902) and JSON merge patch (RFC 7386). Inputs are not changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from bidplane.wire import depth, status

PATCH_LIMIT = 10_000  # operations, as upstream
COPY_LIMIT = 3 * 1024 * 1024  # bytes that all `copy` operations of a patch may make, as upstream


def copy(value: Any) -> Any:
    """A deep copy of JSON: what `copy.deepcopy` does, without its generality."""
    kind = type(value)
    if kind is str or kind is int or kind is bool:  # nearly all there is
        return value
    if kind is dict or isinstance(value, Mapping):
        return {key: copy(item) for key, item in value.items()}
    if kind is list or isinstance(value, list | tuple):
        return [copy(item) for item in value]
    return value


def merge(target: Any, patch: Any) -> Any:
    """Apply a JSON merge patch: null removes, objects merge, all else replaces."""
    if not (type(patch) is dict or isinstance(patch, Mapping)):
        return copy(patch)
    result = dict(target) if type(target) is dict or isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def merge_change(target: Any, desired: Any) -> Any:
    """Return the JSON merge patch that makes objects of `target` those of `desired`."""
    if not (isinstance(target, Mapping) and isinstance(desired, Mapping)):
        return copy(desired)
    change: dict[str, Any] = dict.fromkeys(target.keys() - desired.keys())
    for key, value in desired.items():
        if key not in target or target[key] != value:
            change[key] = merge_change(target.get(key), value)
    return change


def json_patch(target: Any, operations: Any) -> Any:
    """Apply RFC 6902 operations, all or none (the target is copied)."""
    if not isinstance(operations, list):
        raise status.bad_request("error decoding patch: a JSON patch is a list of operations")
    if len(operations) > PATCH_LIMIT:
        raise status.refuse(
            413,
            "RequestEntityTooLarge",
            f"The allowed maximum operations in a JSON patch is {PATCH_LIMIT},"
            f" got {len(operations)}",
        )
    result = copy(target)
    levels = _Levels(result)
    copied = 0
    for operation in operations:
        if not isinstance(operation, dict) or not isinstance(operation.get("path"), str):
            raise status.bad_request("error decoding patch: an operation needs op and path")
        if not isinstance(operation.get("from", ""), str):
            raise status.bad_request("error decoding patch: from must be a path, as text")
        if operation.get("op") == "copy":
            # Each may double what the last one made: thirty of them would fill the memory.
            copied += len(msgspec.json.encode(_find(result, _pointer(operation.get("from", "")))))
            if copied > COPY_LIMIT:
                raise status.refuse(
                    413,
                    "RequestEntityTooLarge",
                    f"The copy operations of a JSON patch may make {COPY_LIMIT} bytes in all",
                )
        result = _operate(result, operation)
        levels.grow(result, operation)
    return result


class _Levels:
    """
    The depth of a document while operations nest parts of it deeper.

    Walking it after each operation would cost too much: what is kept is a bound. Only when that
    is beyond the limit is the document walked, and not more than a few times.
    """

    WALKS_LIMIT = 16

    def __init__(self, document: Any) -> None:
        self._bound = depth.of(document)
        self._walks = 0

    def grow(self, document: Any, operation: dict[str, Any]) -> None:
        """Count the levels after an operation; raises 400 if `document` is now too deep."""
        below = self._bound
        if operation["op"] in ("add", "replace"):
            below = depth.of(operation.get("value"))
        elif operation["op"] not in ("move", "copy"):
            return
        self._bound = max(self._bound, operation["path"].count("/") + below)
        if self._bound > depth.LIMIT:
            self._walks += 1
            try:
                if self._walks > self.WALKS_LIMIT:
                    raise depth.TooDeep
                self._bound = depth.of(document)
            except depth.TooDeep:
                message = f"the patched object is {depth.MESSAGE}"
                raise status.bad_request(message) from None


def _operate(document: Any, operation: dict[str, Any]) -> Any:
    path = _pointer(operation["path"])
    match operation.get("op"):
        case "add":
            return _add(document, path, copy(operation.get("value")))
        case "remove":
            return _remove(document, path)
        case "replace":
            # Upstream's library replaces what is not there, too: it adds it.
            return _replace(document, path, copy(operation.get("value")))
        case "move":
            source = _pointer(operation.get("from", ""))
            value = _find(document, source)
            return _add(_remove(document, source), path, value)
        case "copy":
            return _add(document, path, copy(_find(document, _pointer(operation.get("from", "")))))
        case "test":
            try:
                current = _find(document, path)
            except status.StatusError:  # an absent value is null to `test`
                current = None
            if current != operation.get("value"):
                raise _failed(f"testing value {operation['path']} failed: test failed")
            return document
        case other:
            raise _failed(f"Unexpected kind: {other}")


def _failed(detail: str) -> Exception:
    message = "the server rejected our request due to an error in our request"
    refused = status.refuse(422, "Invalid", message)
    refused.add_note(detail)  # upstream keeps the reason from its clients; a log may show it
    return refused


def _pointer(text: str) -> list[str]:
    if text == "":
        return []
    if not text.startswith("/"):
        raise _failed(f"path {text!r} does not start with /")
    return [part.replace("~1", "/").replace("~0", "~") for part in text[1:].split("/")]


def _index(items: list[Any], part: str, *, end: bool) -> int:
    if part == "-" and end:
        return len(items)
    if not (part.isascii() and part.isdecimal() and len(part) < 10) or int(part) > len(items) - (
        0 if end else 1
    ):
        raise _failed(f"index {part} is out of bounds")
    return int(part)


def _find(document: Any, path: list[str]) -> Any:
    for part in path:
        if isinstance(document, dict):
            if part not in document:
                raise _failed(f"nonexistent path: /{'/'.join(path)}")
            document = document[part]
        elif isinstance(document, list):
            document = document[_index(document, part, end=False)]
        else:
            raise _failed(f"nonexistent path: /{'/'.join(path)}")
    return document


def _add(document: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    parent = _find(document, path[:-1])
    if isinstance(parent, list):
        parent.insert(_index(parent, path[-1], end=True), value)
    elif isinstance(parent, dict):
        parent[path[-1]] = value
    else:
        raise _failed(f"nonexistent path: /{'/'.join(path)}")
    return document


def _replace(document: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    parent = _find(document, path[:-1])
    if isinstance(parent, list):
        parent[_index(parent, path[-1], end=False)] = value
    elif isinstance(parent, dict):
        parent[path[-1]] = value
    else:
        raise _failed(f"nonexistent path: /{'/'.join(path)}")
    return document


def _remove(document: Any, path: list[str]) -> Any:
    if not path:
        return None
    _find(document, path)
    parent = _find(document, path[:-1])
    if isinstance(parent, list):
        del parent[_index(parent, path[-1], end=False)]
    else:
        del parent[path[-1]]
    return document
