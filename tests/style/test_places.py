"""The places that documentation names: folders and files that exist, and each folder in the map."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import bidplane

SOURCE = Path(bidplane.__file__).parent
ROOT = Path(__file__).parents[2]
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text()
PACKAGES = sorted(path.parent.name for path in SOURCE.glob("*/__init__.py"))

# `core/market/`, `exchange/engine.py`; not `planes/NAME/plane.db`, which an installation has.
PLACE = re.compile(r"`((?:[a-z_]+/)+(?:[a-z_]+\.py)?)`")
# `core.market`, `http.client`: a module; it may be followed by a name in it.
MODULE = re.compile(rf"`((?:{'|'.join(PACKAGES)})(?:\.\w+)+)`")


@pytest.mark.parametrize("place", sorted(set(PLACE.findall(ARCHITECTURE))))
def test_the_map_leads_somewhere(place: str) -> None:
    assert (SOURCE / place).exists() or (ROOT / place).exists() or _in_a_folder(place)


def _in_a_folder(place: str) -> bool:
    """Tell if it is a subfolder of the one whose row names it, such as `round/` of `exchange`."""
    rows = [line for line in ARCHITECTURE.splitlines() if f"`{place}`" in line]
    folders = [folder for row in rows for folder in re.findall(r"`([\w/]+)`", row)]
    return any((SOURCE / folder / place).exists() for folder in folders)


def test_each_package_has_a_row_in_the_map() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", ARCHITECTURE, re.MULTILINE)
    assert sorted(rows) == PACKAGES


def test_modules_in_docstrings_exist() -> None:
    """A name such as `core.pods.life` is of a module, or of something in one."""
    stale = [
        f"{path.relative_to(SOURCE)}: {name}"
        for path in sorted(SOURCE.rglob("*.py"))
        for text in _docstrings(ast.parse(path.read_text()))
        for name in MODULE.findall(text)
        if not _exists(path, name)
    ]
    assert not stale, "\n".join(stale)


def _docstrings(tree: ast.Module) -> list[str]:
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    return [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, kinds)]


def _exists(near: Path, name: str) -> bool:
    """Tell if a module below the source or beside the file has the dotted name, or defines it."""
    *parents, last = name.split(".")
    for folder in (SOURCE, near.parent):
        module = folder.joinpath(*parents)
        if module.joinpath(last).is_dir() or module.joinpath(last).with_suffix(".py").is_file():
            return True
        for file in (module.with_suffix(".py"), module / "__init__.py"):
            if file.is_file() and re.search(rf"\b{last}\b", file.read_text()):
                return True
    return False
