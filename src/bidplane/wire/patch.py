"""JSON patch (RFC 6902) and JSON merge patch (RFC 7386). Inputs are not changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bidplane.wire import status

PATCH_LIMIT = 10_000  # operations, as upstream


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
    """JSON merge patch: null removes, objects merge, all else replaces."""
    if not (type(patch) is dict or isinstance(patch, Mapping)):
        return copy(patch)
    result = dict(target) if type(target) is dict or isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


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
    for operation in operations:
        if not isinstance(operation, dict) or not isinstance(operation.get("path"), str):
            raise status.bad_request("error decoding patch: an operation needs op and path")
        result = _operate(result, operation)
    return result


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
                found = _find(document, path)
            except Exception:  # an absent value is null to `test`
                found = None
            if found != operation.get("value"):
                raise _failed(f"testing value {operation['path']} failed: test failed")
            return document
        case other:
            raise _failed(f"Unexpected kind: {other}")


def _failed(why: str) -> Exception:
    words = "the server rejected our request due to an error in our request"
    refused = status.refuse(422, "Invalid", words)
    refused.add_note(why)  # upstream keeps the reason from its clients; a log may show it
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
    if not part.isdecimal() or int(part) > len(items) - (0 if end else 1):
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
    else:
        parent[path[-1]] = value
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
