"""The most specific route wins, whatever the order of the Endpoints."""

import random

from hypothesis import given
from hypothesis import strategies as st

from bidplane.api.endpoint import HeaderMatch
from bidplane.core.activation.routes import RouteTable, rules


def table(*entries):
    """Entries: name, hosts, prefixes, headers."""
    return RouteTable(
        (rule, name)
        for name, hosts, prefixes, headers in entries
        for rule in rules(
            hosts, prefixes, [HeaderMatch(name=key, value=value) for key, value in headers]
        )
    )


def test_a_prefix_matches_whole_segments():
    routes = table(("v1", ["a"], ["/v1/"], []), ("rest", ["a"], [], []))
    for path, name in [
        (b"/v1", "v1"),
        (b"/v1/", "v1"),
        (b"/v1/models", "v1"),
        (b"/v10", "rest"),
        (b"/", "rest"),
        (b"*", "rest"),
    ]:
        assert routes.find(b"a", path, []) == name, path
    assert routes.find(b"b", b"/v1", []) is None
    assert not routes.has_host(b"b")


def test_a_header_rule_matches_any_case_of_its_name_and_each_value():
    routes = table(
        ("blue", ["a"], [], [("X-Colour", "blue")]), ("any", ["a"], [], [("x-colour", "")])
    )
    assert routes.find(b"a", b"/", [(b"x-COLOUR", b"blue")]) == "blue"
    assert routes.find(b"a", b"/", [(b"X-Colour", b"red")]) == "any"
    assert routes.find(b"a", b"/", [(b"X-Colour", b"red"), (b"X-Colour", b"blue")]) == "blue"
    assert routes.find(b"a", b"/", []) is None


PREFIXES = ["/", "/a", "/a/b", "/ab", "/a/b/c"]
HEADERS = [("x", ""), ("x", "1"), ("y", "2")]
ENTRY = st.tuples(
    st.sampled_from(PREFIXES),
    st.lists(st.sampled_from(HEADERS), max_size=2, unique_by=lambda h: h[0]),
)


@given(
    st.lists(ENTRY, max_size=8, unique_by=str),
    st.sampled_from([b"/", b"/a", b"/a/b", b"/a/b/c/d", b"/ab", b"/abc"]),
    st.lists(st.sampled_from([(b"X", b"1"), (b"x", b"2"), (b"Y", b"2")]), max_size=3),
    st.integers(),
)
def test_the_order_of_endpoints_does_not_matter(entries, path, headers, seed):
    """The oracle compares every route that matches; only equal rules depend on the order."""

    def matches(prefix, wanted):
        inside = prefix == "/" or path.decode() == prefix or path.decode().startswith(prefix + "/")
        sent = [(name.lower().decode(), value.decode()) for name, value in headers]
        return inside and all(
            any(name == key and value in ("", text) for key, text in sent) for name, value in wanted
        )

    def rank(entry):
        prefix, wanted = entry
        return (len(prefix), len(wanted), sum(1 for _, value in wanted if value))

    candidates = [entry for entry in entries if matches(*entry)]
    shuffled = list(entries)
    random.Random(seed).shuffle(shuffled)
    routes = table(*((entry, ["a"], [entry[0]], entry[1]) for entry in shuffled))
    chosen = routes.find(b"a", path, headers)
    if not candidates:
        assert chosen is None
    else:
        assert chosen in candidates
        assert rank(chosen) == max(map(rank, candidates))
