"""The types and errors that all databases share."""

from __future__ import annotations

from typing import Any

Value = str | int | bytes | list[str] | None
Row = tuple[Any, ...]


class ConstraintError(Exception):
    """A CHECK, UNIQUE, PRIMARY KEY or trigger refused a statement."""


class Damaged(Exception):
    """The database is not as written: a file that was cut, or bits that have changed."""
