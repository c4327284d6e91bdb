"""What need not be looked at is not; what must be, is, however deep it is."""

import pytest

from bidplane.wire import validate
from bidplane.wire.shapes import ARRAY, OBJECT, STRING, Shape


def deep(leaf: Shape) -> Shape:
    """The leaf, in a map of lists of objects."""
    inner = Shape(OBJECT)
    inner.fields = {"free": Shape(STRING), "leaf": leaf}
    some = Shape(ARRAY)
    some.items = inner
    top = Shape(OBJECT)
    top.values = some
    return top


def test_a_shape_without_demands_is_passed() -> None:
    shape = deep(Shape(STRING))
    assert not shape.demands
    assert validate.problems({"a": [{"free": "x", "leaf": "y"}]}, shape) == []


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (lambda leaf: setattr(leaf, "enum", ("on", "off")), "maybe"),
        (lambda leaf: setattr(leaf, "rules", {"maxLength": 3}), "long"),
    ],
)
def test_a_demand_is_found_however_deep_it_is(change, wrong) -> None:
    leaf = Shape(STRING)
    change(leaf)
    shape = deep(leaf)
    assert shape.demands
    found = validate.problems({"a": [{"leaf": wrong}]}, shape)
    assert [cause.field for cause in found] == ["a[0].leaf"]


def test_a_shape_that_refers_to_itself_is_looked_at() -> None:
    shape = Shape(OBJECT)
    shape.fields = {"child": shape, "name": Shape(STRING)}
    assert shape.demands
    assert validate.problems({"child": {"child": {"name": "x"}}}, shape) == []


def test_a_status_is_written_without_looking_at_the_spec_again() -> None:
    shape = Shape(OBJECT)
    spec = Shape(STRING)
    spec.enum = ("right",)
    shape.fields = {"spec": spec, "status": spec}
    value = {"spec": "old", "status": "wrong"}
    assert [c.field for c in validate.problems(value, shape)] == ["spec", "status"]
    assert [c.field for c in validate.problems(value, shape, passed=("spec",))] == ["status"]
