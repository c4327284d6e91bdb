"""Every package that the source imports is declared, and listed with its purpose."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import bidplane

SOURCE = Path(bidplane.__file__).parent
ROOT = Path(__file__).parents[2]


def _imported() -> dict[str, str]:
    """The modules of others that are imported, each with one place where."""
    modules: dict[str, str] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            for name in names:
                modules.setdefault(name.partition(".")[0], str(path.relative_to(SOURCE)))
    ours = {*sys.stdlib_module_names, "bidplane"}
    return {name: place for name, place in modules.items() if name not in ours}


def _declared() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"]]
    for extra in project["optional-dependencies"].values():
        lines += extra
    return {_normal(re.split(r"[\[<>=;~! ]", line)[0]) for line in lines}


def _normal(package: str) -> str:
    return package.lower().replace("_", "-")


def test_every_import_is_declared() -> None:
    declared, packages = _declared(), packages_distributions()
    undeclared = [
        f"{name} ({place})"
        for name, place in _imported().items()
        if not {_normal(package) for package in packages.get(name, [name])} & declared
    ]
    assert not undeclared


def test_every_dependency_has_its_purpose() -> None:
    page = (ROOT / "docs/dependencies.md").read_text().lower()
    assert not [name for name in sorted(_declared()) if name not in page]
