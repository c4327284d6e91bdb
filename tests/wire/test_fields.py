"""Sets of fields against plain sets of paths, and apply against its own promises."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidplane.errors import ApiError
from bidplane.wire import yaml
from bidplane.wire.patches import fields, managers
from bidplane.wire.patches.managers import Manager
from bidplane.wire.schema import shapes, typed

_TEXT = {"type": "string"}
_SHAPE = shapes.custom(
    {
        "type": "object",
        "properties": {
            "spec": {
                "type": "object",
                "properties": {
                    "a": _TEXT,
                    "map": {"type": "object", "additionalProperties": _TEXT},
                    "atoms": {"type": "array", "items": _TEXT},
                    "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": _TEXT},
                    "rows": {
                        "type": "array",
                        "x-kubernetes-list-type": "map",
                        "x-kubernetes-list-map-keys": ["id"],
                        "items": {"type": "object", "properties": {"id": _TEXT, "v": _TEXT}},
                    },
                },
            }
        },
    }
)

paths = st.sets(st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map(tuple), max_size=8)


def _tree(members: set[tuple[str, ...]]) -> fields.Fields:
    tree: fields.Fields = {}
    for path in members:
        node: fields.Fields = {}
        for name in reversed(path):
            node = {f"f:{name}": node}
        tree = fields.union(tree, node)
    return tree


def _members(tree: fields.Fields) -> set[tuple[str, ...]]:
    return {tuple(path[1:].split(".")) for path in fields.members(tree)}


@given(paths, paths)
def test_sets_are_sets(one: set[tuple[str, ...]], other: set[tuple[str, ...]]) -> None:
    a, b = _tree(one), _tree(other)
    assert _members(a) == one
    assert _members(fields.union(a, b)) == one | other
    assert _members(fields.difference(a, b)) == one - other
    assert _members(fields.intersection(a, b)) == one & other
    assert fields.parsed(a) == a


# An empty list or map is nothing anyone could own, here as upstream.
_text = st.sampled_from("xyz")
_tags = st.lists(_text, unique=True, min_size=1, max_size=3)
_rows = st.lists(
    st.fixed_dictionaries({"id": _text}, optional={"v": _text}),
    unique_by=lambda row: row["id"],
    min_size=1,
    max_size=3,
)
specs = st.fixed_dictionaries(
    {},
    optional={
        "a": _text,
        "map": st.dictionaries(_text, _text, min_size=1, max_size=3),
        "atoms": st.lists(_text, max_size=3),
        "tags": _tags,
        "rows": _rows,
    },
)


def _object(spec: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": "o"}, **({"spec": spec} if spec else {})}


def _who(name: str) -> Manager:
    return Manager(name=name, operation=managers.APPLY, api_version="v1")


def _apply(
    state: tuple[dict[str, Any], list[Manager]], who: str, spec: dict[str, Any], force: bool = True
) -> tuple[dict[str, Any], list[Manager]]:
    live, owners = state
    return managers.applied(owners, _who(who), _object(spec), live, _SHAPE, force=force, now="now")


@given(st.lists(st.tuples(st.sampled_from("pqr"), specs), max_size=6))
def test_what_is_applied_is_there_and_owned(steps: list[tuple[str, dict[str, Any]]]) -> None:
    state: tuple[dict[str, Any], list[Manager]] = ({}, [])
    for who, spec in steps:
        state = _apply(state, who, spec)
        live, owners = state
        merged = typed.merge(live.get("spec") or {}, spec, _SHAPE.fields["spec"])
        assert not _changes(live.get("spec") or {}, merged), "what was applied is as applied"
        again, after = _apply(state, who, spec, force=False)
        assert again.get("spec") == live.get("spec")
        assert {one.identity: one.fields for one in after} == {
            one.identity: one.fields for one in owners
        }
        present = fields.union(fields.added(live, _SHAPE), fields.applied(live, _SHAPE))
        for one in owners:
            lost = fields.difference(one.fields, present)
            assert not lost, "nobody owns what is not there"
    for who in "pqr":
        state = _apply(state, who, {})
    assert not state[0].get("spec"), "when nobody states anything, nothing is left"
    assert not state[1]


def _changes(old: Any, new: Any) -> bool:
    change = typed.compare(old, new, _SHAPE.fields["spec"])
    return bool(change.added or change.modified or change.removed)


@given(specs, specs)
def test_an_update_owns_what_it_changed(before: dict[str, Any], after: dict[str, Any]) -> None:
    first = Manager(name="first", operation=managers.UPDATE, api_version="v1")
    second = Manager(name="second", operation=managers.UPDATE, api_version="v1")
    owners = managers.updated([], first, _object(before), None, _SHAPE, "t1")
    owners = managers.updated(owners, second, _object(after), _object(before), _SHAPE, "t2")
    held = {one.name: one.fields for one in owners}
    mine, theirs = held.get("second", {}), held.get("first", {})
    assert not fields.intersection(mine, theirs)
    if before == after:
        assert not mine
    everything = fields.union(mine, theirs)
    assert not fields.difference(fields.applied(_object(after) | {"metadata": {}}, _SHAPE),
                                 fields.union(everything, {"f:metadata": {}}))  # fmt: skip


def test_order_of_a_merged_list() -> None:
    rows = _SHAPE.fields["spec"].fields["tags"]
    assert typed.merge(["a", "b", "c"], ["c", "a"], rows) == ["b", "c", "a"]
    assert typed.merge(["a", "x", "b"], ["a", "n", "b"], rows) == ["a", "x", "n", "b"]
    assert typed.merge(["x"], ["n"], rows) == ["x", "n"]


@pytest.mark.parametrize(
    "sent", [{"data": {}}, {"f:a": 1}, {"k:{": {}}, {"k:[1]": {}}, {"q:a": {}}, [], {":a": {}}]
)
def test_fields_nobody_can_read(sent: Any) -> None:
    with pytest.raises(fields.BadFields):
        fields.parsed(sent)


def test_many_updaters_become_one() -> None:
    owners: list[Manager] = []
    old: dict[str, Any] | None = None
    for at in range(15):
        who = Manager(name=f"m{at:02}", operation=managers.UPDATE, api_version="v1")
        values = {f"k{n}": "1" for n in range(at + 1)}
        new = _object({"map": values})
        owners = managers.updated(owners, who, new, old, _SHAPE, f"t{at:02}")
        old = new
    assert len(owners) == managers.UPDATERS_LIMIT
    assert owners[0].name == managers.ANCIENT
    assert "f:k5" in owners[0].fields["f:spec"]["f:map"]


def test_yaml_within_bounds() -> None:
    assert yaml.load(b"a: 2001-01-01\nb: &x [1]\nc: *x\n1: yes\n") == {
        "a": "2001-01-01", "b": [1], "c": [1], "1": True,
    }  # fmt: skip
    bomb = b"a0: &a0 [x]\n" + b"".join(
        b"a%d: &a%d [%s]\n" % (n, n, b",".join([b"*a%d" % (n - 1)] * 10)) for n in range(1, 9)
    )
    for body in (bomb, b"&a [*a]", b"[" * 5000, b"!!python/object:x {}", b"a: b\n---\nc: d\n"):
        with pytest.raises(ApiError) as refused:
            yaml.load(body)
        assert refused.value.code == 400
