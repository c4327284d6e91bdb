"""What need not be looked at is not; what must be, is, however deep it is."""

import pytest

from bidplane.wire.schema import validate
from bidplane.wire.schema.shapes import ARRAY, OBJECT, STRING, SchemaNode


def deep(leaf: SchemaNode) -> SchemaNode:
    """The leaf, in a map of lists of objects."""
    inner = SchemaNode(OBJECT)
    inner.fields = {"free": SchemaNode(STRING), "leaf": leaf}
    some = SchemaNode(ARRAY)
    some.items = inner
    top = SchemaNode(OBJECT)
    top.values = some
    return top


def test_a_shape_without_demands_is_passed() -> None:
    shape = deep(SchemaNode(STRING))
    assert not shape.needs_validation
    assert validate.problems({"a": [{"free": "x", "leaf": "y"}]}, shape) == []


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (lambda leaf: setattr(leaf, "enum", ("on", "off")), "maybe"),
        (lambda leaf: setattr(leaf, "rules", {"maxLength": 3}), "long"),
    ],
)
def test_a_demand_is_found_however_deep_it_is(change, wrong) -> None:
    leaf = SchemaNode(STRING)
    change(leaf)
    shape = deep(leaf)
    assert shape.needs_validation
    found = validate.problems({"a": [{"leaf": wrong}]}, shape)
    assert [cause.field for cause in found] == ["a[0].leaf"]


def test_a_shape_that_refers_to_itself_is_looked_at() -> None:
    shape = SchemaNode(OBJECT)
    shape.fields = {"child": shape, "name": SchemaNode(STRING)}
    assert shape.needs_validation
    assert validate.problems({"child": {"child": {"name": "x"}}}, shape) == []


def test_a_status_is_written_without_looking_at_the_spec_again() -> None:
    shape = SchemaNode(OBJECT)
    spec = SchemaNode(STRING)
    spec.enum = ("right",)
    shape.fields = {"spec": spec, "status": spec}
    value = {"spec": "old", "status": "wrong"}
    assert [c.field for c in validate.problems(value, shape)] == ["spec", "status"]
    assert [c.field for c in validate.problems(value, shape, passed=("spec",))] == ["status"]
