"""
The parsed form of an expression, decoded from the library's cel.expr.CheckedExpr.

Macros are written out there: `all`, `map`, `filter`, … are loops, and `cel.bind` is a loop that
never turns. Field numbers are those of cel-spec's `checked.proto` and `syntax.proto`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from bidplane.wire import protobuf

_Wire = dict[int, list[int | bytes]]


class Const(msgspec.Struct, frozen=True):
    chars: int  # of text; 0 for a number
    text: str | None = None


class Ident(msgspec.Struct, frozen=True):
    name: str


class Select(msgspec.Struct, frozen=True):
    operand: Any
    field: str
    test: bool  # has(…)


class CallNode(msgspec.Struct, frozen=True):
    function: str
    args: tuple[Any, ...]  # of a member function, its target first


class ListNode(msgspec.Struct, frozen=True):
    items: tuple[Any, ...]  # of a map, keys and values in turn
    keyed: bool = False  # a map


class Loop(msgspec.Struct, frozen=True):
    range: Any
    variables: tuple[str, ...]
    total: str  # the name of what a turn hands on to the next
    start: Any
    condition: Any
    step: Any
    result: Any


Node = Const | Ident | Select | CallNode | ListNode | Loop


def parse(serialized: bytes) -> Node:
    """Return the expression that `Expression.serialize()` gave."""
    checked = protobuf.split(_bytes(protobuf.split(serialized), 2))  # within a protobuf.Any
    return _node(_bytes(checked, 4))


def _bytes(wire: _Wire, number: int) -> bytes:
    chunk = (wire.get(number) or [b""])[-1]
    assert isinstance(chunk, bytes)
    return chunk


def _text(wire: _Wire, number: int) -> str:
    return _bytes(wire, number).decode()


def _nodes(wire: _Wire, number: int) -> tuple[Node, ...]:
    return tuple(_node(chunk) for chunk in wire.get(number, ()) if isinstance(chunk, bytes))


def _node(raw: bytes) -> Node:
    wire = protobuf.split(raw)
    if 4 in wire:
        return Ident(_text(protobuf.split(_bytes(wire, 4)), 1))
    if 5 in wire:
        part = protobuf.split(_bytes(wire, 5))
        return Select(_node(_bytes(part, 1)), _text(part, 2), 3 in part)
    if 6 in wire:
        part = protobuf.split(_bytes(wire, 6))
        return CallNode(_text(part, 2), _nodes(part, 1) + _nodes(part, 3))
    if 7 in wire:
        return ListNode(_nodes(protobuf.split(_bytes(wire, 7)), 1))
    if 8 in wire:
        entries = [
            protobuf.split(entry)
            for entry in protobuf.split(_bytes(wire, 8)).get(2, ())
            if isinstance(entry, bytes)
        ]
        items = tuple(node for at in entries for node in _nodes(at, 3) + _nodes(at, 4))
        return ListNode(items, keyed=True)
    if 9 in wire:
        return _loop(protobuf.split(_bytes(wire, 9)))
    constant = protobuf.split(_bytes(wire, 3))
    if 6 in constant:
        text = _text(constant, 6)
        return Const(len(text), text)
    return Const(len(_bytes(constant, 7)) if 7 in constant else 0)


def _loop(part: _Wire) -> Loop:
    return Loop(
        range=_node(_bytes(part, 2)),
        variables=tuple(_text(part, number) for number in (1, 8) if number in part),
        total=_text(part, 3),
        start=_node(_bytes(part, 4)),
        condition=_node(_bytes(part, 5)),
        step=_node(_bytes(part, 6)),
        result=_node(_bytes(part, 7)),
    )
