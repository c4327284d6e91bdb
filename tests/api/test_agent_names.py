"""An agent's name becomes part of paths, namespaces and labels, so it is checked first."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidplane.api.agent import host_namespace, name_problem
from bidplane.wire.names import label_problems


@pytest.mark.parametrize("name", ["a", "trainer", "trainer-2", "a" * 40])
def test_good_names(name):
    assert name_problem(name) is None


@pytest.mark.parametrize(
    "name",
    ["", "-a", "a-", "2a", "A", "a_b", "a.b", "a/b", "a b", "a\n", "é", "a" * 41, "../host"],
)
def test_bad_names_are_told_how_to_be_good(name):
    assert "lower-case letters" in (name_problem(name) or "")


@pytest.mark.parametrize("name", ["host", "system", "default", "kube", "bidplane"])
def test_reserved_names(name):
    assert "reserved" in (name_problem(name) or "")


@given(st.text(alphabet="ab2-.", max_size=45))
def test_a_good_name_makes_a_good_namespace(name):
    if name_problem(name) is None:
        assert not label_problems(host_namespace(name))
