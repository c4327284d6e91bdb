"""
How the source reads, in figures that may fall and never rise.

Each limit is what the tree had when it was last lowered. Whoever goes below one lowers it here;
whoever goes above one finds a better name, a plainer sentence or another folder.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import bidplane

SOURCE = Path(bidplane.__file__).parent

# Names that do not tell what they hold: a pronoun or a participle alone.
EMPTY_NAMES = re.compile(
    "said|told|found|known|there|here|one|some|others|given|made|held|kept|wanted|words|asked|left"
    "|fresh|shown|seen|meant|taken|had|why|what|again|thing|things"
)
# A docstring is a noun phrase or an imperative, not a relative clause.
RELATIVE = re.compile(r"(What|Whether|Who|Whom|Whose|Of|Where|Which|Whoever|Whatever)\b")

EMPTY_NAMES_LIMIT = 25
RELATIVE_DOCSTRINGS_LIMIT = 0
FILES_IN_A_FOLDER_LIMIT = 16
SHARED_CLASS_NAMES_LIMIT = 0
ANY_OUTSIDE_WIRE_LIMIT = 5.8  # per 1,000 lines
ANY_BY_ANOTHER_NAME_LIMIT = 14.3  # the same, of names such as `Object = Mapping[str, Any]`
UNTYPED_OBJECTS_IN_CONTROLLERS_LIMIT = 3.8  # percent of annotations


@cache
def _modules() -> tuple[tuple[str, str, ast.Module], ...]:
    """Every module as its path below the source, its text and its tree."""
    texts = ((path, path.read_text()) for path in sorted(SOURCE.rglob("*.py")))
    return tuple((str(path.relative_to(SOURCE)), text, ast.parse(text)) for path, text in texts)


def _bound_names(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Variables and parameters, each with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno


def _docstrings(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield text, getattr(node, "lineno", 1)


def _check(places: list[str], limit: int, advice: str) -> None:
    """Fail with the places when there are more than the limit."""
    shown = "\n  ".join(places[:20])
    assert len(places) <= limit, f"{len(places)} places, at most {limit}: {advice}\n  {shown}"


def test_names_tell_what_they_hold() -> None:
    places = [
        f"{path}:{line} {name}"
        for path, _, tree in _modules()
        for name, line in _bound_names(tree)
        if EMPTY_NAMES.fullmatch(name)
    ]
    _check(places, EMPTY_NAMES_LIMIT, "name what the value is")


def test_docstrings_say_what_a_thing_is_or_does() -> None:
    places = [
        f"{path}:{line} {text.splitlines()[0]}"
        for path, _, tree in _modules()
        for text, line in _docstrings(tree)
        if RELATIVE.match(text)
    ]
    _check(places, RELATIVE_DOCSTRINGS_LIMIT, "begin with a noun or an imperative")


def test_no_folder_is_crowded() -> None:
    folders = Counter(str(Path(path).parent) for path, _, _ in _modules())
    crowded = [f"{folder}: {n}" for folder, n in folders.items() if n > FILES_IN_A_FOLDER_LIMIT]
    _check(crowded, 0, "divide the folder by subject")


def test_every_folder_says_what_lives_there() -> None:
    silent = [
        path
        for path, _, tree in _modules()
        if path.endswith("__init__.py") and not ast.get_docstring(tree)
    ]
    _check(silent, 0, "write a docstring that says what lives there")


def test_one_class_name_is_one_class() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path, _, tree in _modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(path)
    shared = [f"{name}: {', '.join(paths)}" for name, paths in places.items() if len(paths) > 1]
    _check(shared, SHARED_CLASS_NAMES_LIMIT, "give each class a name of its own")


def _uses(tree: ast.Module, names: frozenset[str]) -> int:
    return sum(isinstance(node, ast.Name) and node.id in names for node in ast.walk(tree))


def _names_for_any(tree: ast.Module) -> frozenset[str]:
    """The names that a module gives to `Any`, or to collections of it."""
    return frozenset(
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        and _uses(ast.Module([ast.Expr(node.value)], []), ANY)
        and isinstance(node.value, ast.Name | ast.Subscript)
        for target in node.targets
        if isinstance(target, ast.Name)
    )


ANY = frozenset({"Any"})


def test_types_are_declared() -> None:
    modules = [(text, tree) for path, text, tree in _modules() if not path.startswith("wire/")]
    lines = sum(text.count("\n") for text, _ in modules)
    plain = 1000 * sum(_uses(tree, ANY) for _, tree in modules) / lines
    assert plain <= ANY_OUTSIDE_WIRE_LIMIT, f"{plain:.1f} uses of Any per 1,000 lines"
    shared = frozenset[str]().union(
        *(_names_for_any(tree) for path, _, tree in _modules() if path.startswith("api/"))
    )
    renamed = sum(_uses(tree, shared | _names_for_any(tree)) for _, tree in modules)
    by_another_name = 1000 * renamed / lines
    assert by_another_name <= ANY_BY_ANOTHER_NAME_LIMIT, f"{by_another_name:.1f} per 1,000 lines"


def _annotations(tree: ast.Module) -> Iterator[ast.expr]:
    """The annotations of parameters, results and variables."""
    for node in ast.walk(tree):
        annotation: ast.expr | None = None
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            annotation = node.returns
        elif isinstance(node, ast.arg | ast.AnnAssign):
            annotation = node.annotation
        if annotation is not None:
            yield annotation


def test_controllers_use_structs_and_views() -> None:
    """`Object` is JSON of any kind: a reader cannot tell what is in it."""
    annotations = [
        annotation
        for path, _, tree in _modules()
        if path.startswith("controllers/")
        for annotation in _annotations(tree)
    ]
    untyped = sum(
        any(isinstance(node, ast.Name) and node.id == "Object" for node in ast.walk(annotation))
        for annotation in annotations
    )
    percent = 100 * untyped / len(annotations)
    assert percent <= UNTYPED_OBJECTS_IN_CONTROLLERS_LIMIT, f"{percent:.1f} % are Object"
