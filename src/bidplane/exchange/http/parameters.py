"""
Bodies and queries, read strictly: what two readers could take differently is refused.
"""

from __future__ import annotations

import builtins
import json
from collections.abc import Mapping
from typing import NoReturn, TypeVar
from urllib.parse import parse_qs

import msgspec

from bidplane.http.request import Request, whole_number
from bidplane.wire import status

Query = Mapping[str, str]
LARGEST_NUMBER = 2**53
NOT_A_TEXT = "key and memo must be plain text: they hold a NUL, or half of a character"

R = TypeVar("R", bound=msgspec.Struct)


def decoded(body: bytes, type: builtins.type[R]) -> R:
    """Return the request; raises ValueError that says what is wrong with it."""
    try:
        json.loads(body, object_pairs_hook=_once, parse_constant=_no_constant)
        return msgspec.json.decode(body, type=type)
    except UnicodeDecodeError:
        raise ValueError("the body is not UTF-8") from None
    except RecursionError:
        raise ValueError("the body is nested too deeply") from None


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Refuse a name that occurs twice: two readers would take different ones."""
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the body has {twice[:40]!r} twice; give it once")
    return members


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f'{text} is not JSON; an amount is a text such as "1.50"')


def query_of(request: Request) -> Query:
    """The last value of each parameter."""
    try:
        text = request.query_text.encode("latin-1").decode("ascii")
        parameters = parse_qs(text, errors="strict", max_num_fields=16)
    except ValueError as error:
        message = "the query is not key=value&…, percent-encoded as UTF-8"
        raise status.bad_request(message) from error
    return {name: values[-1] for name, values in parameters.items()}


def number(query: Query, name: str, default: int, *, least: int = -LARGEST_NUMBER) -> int:
    """A whole number of the query; raise 400 for anything else."""
    text = query.get(name)
    if text is None:
        return default
    value = whole_number(text) if len(text) <= 17 and not text.startswith("+") else None
    if value is None or not least <= value <= LARGEST_NUMBER:
        lowest = f", {least} or more" if least >= 0 else ""
        raise status.bad_request(f"{name}={text[:40]!r} is not a whole number{lowest}")
    return value
