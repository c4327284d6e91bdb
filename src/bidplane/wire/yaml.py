"""
YAML bodies: what JSON can hold, within bounds.

Aliases are allowed, as long as the document they stand for stays small.
"""

from __future__ import annotations

from typing import Any

import msgspec
import yaml

from bidplane.wire import status

NODES_LIMIT = 1_000_000  # once every alias is written out
DEPTH_LIMIT = 200


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Safe, and without dates: to JSON a date is text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, rule) for tag, rule in rules if tag != "tag:yaml.org,2002:timestamp"]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load(body: bytes) -> Any:
    """The one document in `body`; 400 when there is none, more, or too much."""
    if body[:1] == b"{":
        try:
            return msgspec.json.decode(body)  # JSON is YAML too, and what most clients send
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
    loader = None
    try:
        loader = _Loader(body)
        node = loader.get_single_node()
        if node is None:
            return None
        _measure(node, {}, 0)
        value = loader.construct_document(node)
    except yaml.YAMLError as error:
        raise status.bad_request(f"error converting YAML to JSON: yaml: {error}") from None
    except (RecursionError, ValueError) as error:
        raise status.bad_request(f"error converting YAML to JSON: yaml: {error}") from None
    finally:
        if loader is not None:
            loader.dispose()
    return _plain(value)


def _measure(node: yaml.Node, known: dict[int, int], depth: int) -> int:
    if depth > DEPTH_LIMIT:
        raise ValueError(f"nested deeper than {DEPTH_LIMIT} levels")
    if id(node) in known:
        size = known[id(node)]
        if not size:
            raise ValueError("an alias contains itself")
        return size
    known[id(node)] = 0
    size = 1
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            size += _measure(key, known, depth + 1) + _measure(value, known, depth + 1)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            size += _measure(item, known, depth + 1)
    if size > NODES_LIMIT:
        raise ValueError("document contains excessive aliasing")
    known[id(node)] = size
    return size


def _plain(value: Any) -> Any:
    """Keys are text, and nothing is what JSON has not."""
    if isinstance(value, dict):
        return {_key(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise status.bad_request(
        f"error converting YAML to JSON: a {type(value).__name__} has no place in JSON"
    )


def _key(key: Any) -> str:
    if isinstance(key, bool):
        return "true" if key else "false"
    if isinstance(key, str | int | float):
        return str(key)
    raise status.bad_request("error converting YAML to JSON: a key must be text")
