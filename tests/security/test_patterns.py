"""
Our own regular expressions on texts that were made for them: none takes more than linear time.

What agents write runs on RE2 (`wire.regex`), and no expression of Python's `re` is made of what a
request holds. Those that are written in our code are all tried here, wherever they stand.
"""

from __future__ import annotations

import ast
import importlib
import itertools
import pkgutil
import re
import time
from pathlib import Path

import pytest

import bidplane
from bidplane.core import cel
from bidplane.wire import regex

LENGTH = 6_000  # characters: in quadratic time, seconds
CPU_LIMIT = 0.5  # seconds, for one expression on one text
PIECES = (
    *("a", "0", "A", ".", "-", "_", "/", " ", ":", "\\", '"', "'", "[", "(", ",", "=", "\t", "é"),
    *("a.", "a-", "0.", "a/", "a=", "a,", "\\\\", '""', "''", "a b", ".a", "[0]", "self.", "a:b"),
    *("variables.a ", "device.", "cel.bind(", "$(", "{{", "%s", "1e", "0x", "(a", "*/", "-1"),
)
HEADS = ("", '"', "'", "(", "[", "1", "a", "self", "device.attributes", "has(", "-", "v1.2.3-")
# Lines of our own files and programs, never what a request holds.
TRUSTED = frozenset({"bidplane.sim", "bidplane.testing", "bidplane.bench"})


def _expressions() -> dict[str, re.Pattern[str]]:
    found: dict[str, re.Pattern[str]] = {}
    for module in pkgutil.walk_packages(bidplane.__path__, "bidplane."):
        if any(module.name.startswith(name) for name in TRUSTED) or "__main__" in module.name:
            continue
        try:
            loaded = importlib.import_module(module.name)
        except ImportError:
            continue  # an extra that is not installed
        for value in vars(loaded).values():
            if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
                found.setdefault(value.pattern, value)
    return found


EXPRESSIONS = _expressions()


@pytest.mark.parametrize("pattern", sorted(EXPRESSIONS), ids=lambda text: text[:40])
def test_our_expressions_take_linear_time(pattern: str) -> None:
    compiled = EXPRESSIONS[pattern]
    for head, piece in itertools.product(HEADS, PIECES):
        text = head + piece * (LENGTH // len(piece)) + "\x00"
        before = time.thread_time()
        compiled.match(text)
        compiled.fullmatch(text)
        spent = time.thread_time() - before
        assert spent < CPU_LIMIT, f"{spent:.1f} s for {head!r} + {piece!r} * n"


def test_expressions_were_found() -> None:
    assert len(EXPRESSIONS) > 40


def test_no_expression_is_made_of_data() -> None:
    """Each first argument of `re` is written down, or a name in capitals that is."""
    dynamic = []
    for path in Path(bidplane.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if getattr(node.func.value, "id", "") != "re" or not node.args:
                continue
            if node.func.attr == "escape" or isinstance(node.args[0], ast.Constant):
                continue
            names = [part.id for part in ast.walk(node.args[0]) if isinstance(part, ast.Name)]
            if not names or any(name.strip("_") != name.strip("_").upper() for name in names):
                dynamic.append(f"{path.name}:{node.lineno}")
    # Their arguments are tables in the same files.
    assert set(map(_file, dynamic)) <= {"scalars.py", "formats.py", "environment.py"}, dynamic


def _file(place: str) -> str:
    return place.partition(":")[0]


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|aa)+$", "^(([a-z])+.)+[A-Z]([a-z])+$", "(.*)*x"])
def test_expressions_of_agents_take_linear_time(pattern: str) -> None:
    text = "a" * 100_000 + "!"
    before = time.thread_time()
    regex.compile(pattern).matches(text)
    regex.compile(pattern).find(text)
    program = cel.compile(f"self.matches('{pattern}')", ("self",))
    assert program.evaluate({"self": text}) in (True, False)
    assert time.thread_time() - before < CPU_LIMIT
