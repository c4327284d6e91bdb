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
    offset: int = -1  # of its first character in the source; -1 if unknown, as below


class Select(msgspec.Struct, frozen=True):
    operand: Any
    field: str
    test: bool  # has(…)
    offset: int = -1  # of its dot


class CallNode(msgspec.Struct, frozen=True):
    function: str
    args: tuple[Any, ...]  # of a member function, its target first
    offset: int = -1  # of its operator or bracket


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
    return _Decoder(checked).node(_bytes(checked, 4))


def _bytes(wire: _Wire, number: int) -> bytes:
    chunk = (wire.get(number) or [b""])[-1]
    assert isinstance(chunk, bytes)
    return chunk


def _text(wire: _Wire, number: int) -> str:
    return _bytes(wire, number).decode()


def _number(wire: _Wire, number: int) -> int:
    value = (wire.get(number) or [0])[-1]
    assert isinstance(value, int)
    return value


class _Decoder:
    """Decodes nodes, each with its position in the source."""

    def __init__(self, checked: _Wire) -> None:
        positions = protobuf.split(_bytes(checked, 5)).get(4, ())
        entries = [protobuf.split(entry) for entry in positions if isinstance(entry, bytes)]
        self._offsets = {_number(entry, 1): _number(entry, 2) for entry in entries}

    def _nodes(self, wire: _Wire, number: int) -> tuple[Node, ...]:
        return tuple(self.node(chunk) for chunk in wire.get(number, ()) if isinstance(chunk, bytes))

    def node(self, raw: bytes) -> Node:
        wire = protobuf.split(raw)
        offset = self._offsets.get(_number(wire, 2), -1)
        if 4 in wire:
            return Ident(_text(protobuf.split(_bytes(wire, 4)), 1), offset)
        if 5 in wire:
            part = protobuf.split(_bytes(wire, 5))
            return Select(self.node(_bytes(part, 1)), _text(part, 2), 3 in part, offset)
        if 6 in wire:
            part = protobuf.split(_bytes(wire, 6))
            args = self._nodes(part, 1) + self._nodes(part, 3)
            return CallNode(_text(part, 2), args, offset)
        if 7 in wire:
            return ListNode(self._nodes(protobuf.split(_bytes(wire, 7)), 1))
        if 8 in wire:
            entries = [
                protobuf.split(entry)
                for entry in protobuf.split(_bytes(wire, 8)).get(2, ())
                if isinstance(entry, bytes)
            ]
            items = tuple(
                node for at in entries for node in self._nodes(at, 3) + self._nodes(at, 4)
            )
            return ListNode(items, keyed=True)
        if 9 in wire:
            return self._loop(protobuf.split(_bytes(wire, 9)))
        constant = protobuf.split(_bytes(wire, 3))
        if 6 in constant:
            text = _text(constant, 6)
            return Const(len(text), text)
        return Const(len(_bytes(constant, 7)) if 7 in constant else 0)

    def _loop(self, part: _Wire) -> Loop:
        return Loop(
            range=self.node(_bytes(part, 2)),
            variables=tuple(_text(part, number) for number in (1, 8) if number in part),
            total=_text(part, 3),
            start=self.node(_bytes(part, 4)),
            condition=self.node(_bytes(part, 5)),
            step=self.node(_bytes(part, 6)),
            result=self.node(_bytes(part, 7)),
        )
