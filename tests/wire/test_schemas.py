"""Pure parts of the wire: selectors, quantities, patches, shapes, columns, durations."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidplane.wire import kinds, paths, quantity, resources, selectors
from bidplane.wire.patches import jsonpatch
from bidplane.wire.patches.strategic import strategic
from bidplane.wire.schema import decode, shapes
from bidplane.wire.table import human, jsonpath, table


@pytest.mark.parametrize(
    ("given_", "written"),
    [
        ("1000m", "1"),
        ("0.5", "500m"),
        ("1024Mi", "1Gi"),
        ("1Ki", "1Ki"),
        ("1e3", "1e3"),
        ("1000", "1k"),
        (2, "2"),
        ("0", "0"),
        ("1.5Gi", "1536Mi"),
        ("100M", "100M"),
        ("-1500m", "-1500m"),
        ("12E", "12E"),
    ],
)
def test_quantities(given_: Any, written: str) -> None:
    assert quantity.canonical(given_) == written


@given(st.integers(-(10**15), 10**15), st.sampled_from(["", "m", "k", "M", "Ki", "Gi"]))
def test_a_quantity_keeps_its_value(number: int, suffix: str) -> None:
    text = f"{number}{suffix}"
    assert quantity.parse(quantity.canonical(text)) == quantity.parse(text)
    assert quantity.canonical(quantity.canonical(text)) == quantity.canonical(text)


@pytest.mark.parametrize("text", ["", "x", "1 Gi", "1GB", "--1", "1..2"])
def test_what_is_no_quantity(text: str) -> None:
    with pytest.raises(ValueError, match="quantities must match"):
        quantity.canonical(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=10,
)


@given(JSON, JSON)
def test_merge_patch_is_idempotent_and_leaves_its_inputs_alone(target: Any, change: Any) -> None:
    before = jsonpatch.copy(target), jsonpatch.copy(change)
    once = jsonpatch.merge(target, change)
    assert jsonpatch.merge(once, change) == once
    assert (target, change) == before


WITHOUT_NULL = st.recursive(
    st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=10,
)
OBJECTS = st.dictionaries(st.text(max_size=3), WITHOUT_NULL)


@given(OBJECTS, OBJECTS)
def test_the_change_from_one_object_to_another_makes_it(target: Any, desired: Any) -> None:
    assert jsonpatch.merge(target, jsonpatch.merge_change(target, desired)) == desired


def test_strategic_merge_weaves_lists() -> None:
    shape = shapes.builtin("v1", "Pod")
    assert shape is not None
    pod = {"spec": {"containers": [{"name": n, "image": n} for n in "abc"]}}
    change = {
        "spec": {
            "$setElementOrder/containers": [{"name": "c"}, {"name": "a"}],
            "containers": [{"name": "a", "image": "new"}],
        }
    }
    merged = strategic(pod, change, shape)
    found = [(c["name"], c["image"]) for c in merged["spec"]["containers"]]
    assert found == [("b", "b"), ("c", "c"), ("a", "new")]
    assert pod["spec"]["containers"][0]["image"] == "a"


def test_retained_keys() -> None:
    shape = shapes.builtin("v1", "Pod")
    assert shape is not None
    pod = {"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}}
    volume = {"$retainKeys": ["name", "hostPath"], "name": "v", "hostPath": {"path": "/x"}}
    merged = strategic(pod, {"spec": {"volumes": [volume]}}, shape)
    assert merged["spec"]["volumes"] == [{"name": "v", "hostPath": {"path": "/x"}}]


def test_cleaning_copies_prunes_and_reports() -> None:
    shape = shapes.builtin("v1", "Pod")
    assert shape is not None
    sent = {
        "metadata": {"name": "a", "labels": None},
        "spec": {"containers": [{"name": "a", "nope": 1, "ports": [{"containerPort": 80}]}]},
    }
    report = decode.DecodeReport()
    cleaned = decode.clean(sent, shape, report)
    assert report.unknown == ["spec.containers[0].nope"]
    assert "labels" not in cleaned["metadata"]
    assert cleaned["spec"]["containers"][0]["ports"][0]["protocol"] == "TCP"
    assert sent["spec"]["containers"][0]["nope"] == 1  # type: ignore[index]


def test_every_served_kind_has_a_shape() -> None:
    for resource in resources.builtin().values():
        assert resources.shape(resource).kind == "object", resource.kind


def test_every_rule_is_of_a_served_resource() -> None:
    served = {resource.storage for resource in resources.builtin().values()}
    assert kinds.RULES.keys() <= served


def test_every_table_has_as_many_cells_as_columns() -> None:
    obj = {"metadata": {"name": "a", "creationTimestamp": "2026-01-01T00:00:00Z"}}
    for resource in resources.builtin().values():
        if resource.columns:
            made = table(resource, [obj], {}, now=0, include="None")
            assert len(made["rows"][0]["cells"]) == len(made["columnDefinitions"]), resource.kind


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (130, "2m10s"),
        (600, "10m"),
        (3 * 3600, "3h"),
        (3 * 3600 + 60, "3h1m"),
        (8 * 3600 + 60, "8h"),
        (50 * 3600, "2d2h"),
        (9 * 86400, "9d"),
        (3 * 365 * 86400 + 86400, "3y1d"),
    ],
)
def test_durations(seconds: int, text: str) -> None:
    assert human.duration(seconds) == text


def test_the_age_of_a_time_without_a_zone_is_unknown() -> None:
    """Such a time means another moment on every machine."""
    assert human.age("2026-11-01T10:00:00Z", 1793527261.0) == "61s"
    assert human.age("2026-11-01T12:00:00+02:00", 1793527261.0) == "61s"
    assert human.age("2026-11-01T10:00:00", 1793527261.0) == human.UNKNOWN
    assert human.age("2026-11-01", 1793527261.0) == human.UNKNOWN


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (".a.b", 1),
        ("{.a.b}", 1),
        (".a['x.y']", 2),
        (".a.x\\.y", 2),
        (".list[0].n", "p"),
        (".list[-1].n", "q"),
        ('.list[?(@.n=="q")].v', 9),
        (".list[*].n", "p"),
        (".nope.b", None),
        (".list[5]", None),
        ("..", None),
    ],
)
def test_json_paths(path: str, found: Any) -> None:
    obj = {"a": {"b": 1, "x.y": 2}, "list": [{"n": "p"}, {"n": "q", "v": 9}]}
    assert jsonpath.first(obj, path) == found


def test_paths() -> None:
    found = paths.target("/apis/apps/v1/namespaces/x/deployments/d/status")
    assert found == paths.RequestTarget("apps", "v1", "deployments", "x", "d", "status")
    assert paths.target("/api/v1/namespaces/x") == paths.RequestTarget(
        "", "v1", "namespaces", "", "x"
    )
    finalize = paths.target("/api/v1/namespaces/x/finalize")
    assert finalize == paths.RequestTarget("", "v1", "namespaces", "", "x", "finalize")
    assert paths.target("/api/v1/pods") == paths.RequestTarget("", "v1", "pods")
    assert paths.target("/api/v1") is None
    assert paths.target("/openapi/v3") is None


@given(st.dictionaries(st.sampled_from("abc"), st.sampled_from("xyz")), st.sampled_from("abc"))
def test_a_selector_and_its_negation(labels: dict[str, str], key: str) -> None:
    obj = {"metadata": {"labels": labels}}
    assert selectors.labels(key).matches(obj) != selectors.labels(f"!{key}").matches(obj)
    for value in "xyz":
        equal = selectors.labels(f"{key}={value}").matches(obj)
        assert equal != selectors.labels(f"{key}!={value}").matches(obj)
        assert equal == selectors.labels(f"{key} in ({value})").matches(obj)
