"""
Regular expressions that users write: RE2, as in Go, which takes linear time on any text.

Python's own `re` has another syntax (no `(?i)` in the middle, look-around) and can take for ever
on a text that was made for it.
"""

from __future__ import annotations

import functools
from typing import Any

import re2  # type: ignore[import-untyped]

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False  # an error is told to whoever wrote the expression


class BadPattern(ValueError):
    """A text that is no regular expression; the message names the part that is wrong."""


class Pattern:
    """A compiled expression."""

    __slots__ = ("_compiled", "pattern")

    def __init__(self, pattern: str, compiled: Any) -> None:
        self.pattern, self._compiled = pattern, compiled

    @property
    def instructions(self) -> int:
        """
        The size of the compiled expression, such as 1,000 for `a{1000}`. A text may cost as many
        steps for each of its characters.
        """
        return int(self._compiled.programsize)

    def matches(self, text: str) -> bool:
        """Return whether the expression matches anywhere in `text`."""
        return self._compiled.search(text) is not None

    def find(self, text: str) -> str:
        """Return the first match, or an empty text."""
        match = self._compiled.search(text)
        return "" if match is None else str(match.group(0))

    def find_all(self, text: str) -> list[str]:
        """Return all matches that do not overlap, from the left."""
        return [str(match.group(0)) for match in self._compiled.finditer(text)]


@functools.lru_cache(maxsize=512)
def compile(pattern: str) -> Pattern:
    """Compile `pattern`; raises `BadPattern`."""
    try:
        return Pattern(pattern, re2.compile(pattern, _OPTIONS))
    except re2.error as error:
        (message,) = error.args or ("",)
        text = message.decode(errors="replace") if isinstance(message, bytes) else str(message)
        raise BadPattern(f"error parsing regexp: {text}") from None
