"""
YAML bodies, limited to JSON's types and in size.

Aliases are allowed, as long as the document they stand for stays small.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
import yaml

from bidplane.wire import depth, status

# Once every alias is written out. A node costs about 10 µs: the largest definitions that are known
# have half as many, and one request holds its server for half a second at most.
NODES_LIMIT = 50_000
NUMBER_LIMIT = 400  # characters: a float has 309 digits before its point


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """
    A safe loader that reads dates as text, as JSON has no dates.

    So it reads numbers with colons (`1:30` is 90 in YAML 1.1, in base 60), as Kubernetes does: to
    convert a long one takes quadratic time.
    """


def _number(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int | float:
    """Return a number; raises ValueError for a long one, or one in base 60."""
    text = str(loader.construct_scalar(node))
    if ":" in text or len(text) > NUMBER_LIMIT:
        raise ValueError(f"{text[:20]!r} is not a number that JSON has")
    kind = loader.construct_yaml_int if node.tag == _INT else loader.construct_yaml_float
    return kind(node)


_INT, _FLOAT, _TIMESTAMP = (f"tag:yaml.org,2002:{name}" for name in ("int", "float", "timestamp"))
_Loader.yaml_implicit_resolvers = {
    first: [(tag, rule) for tag, rule in rules if tag not in (_INT, _FLOAT, _TIMESTAMP)]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_DIGITS = list("-+0123456789")
_Loader.add_implicit_resolver(
    _INT,
    re.compile(r"[-+]?(?:0b[01_]+|0[0-7_]+|0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)$"),
    _DIGITS,
)
_Loader.add_implicit_resolver(
    _FLOAT,
    re.compile(
        r"(?:[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
    [*_DIGITS, "."],
)
for _tag in (_INT, _FLOAT):
    _Loader.add_constructor(_tag, _number)


def load(body: bytes) -> Any:
    """Return the document in `body`; raises 400 unless it is exactly one, within the limits."""
    if body[:1] == b"{":
        try:
            value = msgspec.json.decode(body)  # JSON is YAML too, and what most clients send
            depth.check(value, depth.brackets(body))
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
        except (RecursionError, depth.TooDeep):
            raise status.bad_request(f"the body is {depth.MESSAGE}") from None
        else:
            return value
    loader = None
    try:
        _check_depth(body)
        loader = _Loader(body)
        node = loader.get_single_node()
        if node is None:
            return None
        _measure(node, {}, 0)
        value = loader.construct_document(node)
        depth.check(value)  # written out, aliases of aliases are deeper than any one of them
    except yaml.YAMLError as error:
        raise status.bad_request(f"error converting YAML to JSON: yaml: {error}") from None
    except (RecursionError, ValueError) as error:
        raise status.bad_request(f"error converting YAML to JSON: yaml: {error}") from None
    finally:
        if loader is not None:
            loader.dispose()
    return _plain(value)


def _check_depth(body: bytes) -> None:
    """
    Refuse what is nested too deep, on the parser's events: the parser composes nodes by recursion
    in C, and 40,000 levels of it end the process.
    """
    parser = _Loader(body)
    level = events = 0
    try:
        while parser.check_event():
            event = parser.get_event()
            events += 1
            if isinstance(event, yaml.CollectionStartEvent):
                level += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                level -= 1
            if level > depth.LIMIT:
                raise depth.TooDeep
            if events > NODES_LIMIT:
                raise ValueError("the document has too many parts")
    finally:
        parser.dispose()


def _measure(node: yaml.Node, sizes: dict[int, int], level: int) -> int:
    if level > depth.LIMIT:
        raise depth.TooDeep
    if id(node) in sizes:
        size = sizes[id(node)]
        if not size:
            raise ValueError("an alias contains itself")
        return size
    sizes[id(node)] = 0
    size = 1
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            size += _measure(key, sizes, level + 1) + _measure(value, sizes, level + 1)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            size += _measure(item, sizes, level + 1)
    if size > NODES_LIMIT:
        raise ValueError("document contains excessive aliasing")
    sizes[id(node)] = size
    return size


def _plain(value: Any) -> Any:
    """Return the value with text keys; raises 400 for a type that JSON lacks."""
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
