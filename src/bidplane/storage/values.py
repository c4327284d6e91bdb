"""What every database here has in common."""

from __future__ import annotations

from typing import Any

Value = str | int | bytes | list[str] | None
Row = tuple[Any, ...]


class ConstraintError(Exception):
    """A CHECK, UNIQUE, PRIMARY KEY or trigger said no."""
