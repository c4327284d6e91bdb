"""The structs are the schema: what the CRDs say is what the structs take."""

import enum
import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidplane.api import crds, kinds
from bidplane.api.agent import AgentSpec
from bidplane.api.bid import BidSpec, BidStatus
from bidplane.api.pool import PoolSpec
from bidplane.core.devices.chain import chain_problem
from bidplane.plane.admission import rules as cel_rules
from bidplane.wire.schema import crds as rules

KEDA = tuple(crd for crd in crds.for_agents() if crd["spec"]["group"] == "http.keda.sh")
ALL = (*crds.all_crds(), *KEDA)
BY_KIND = {crd["spec"]["names"]["kind"]: crd for crd in ALL}


def schema(kind):
    return BY_KIND[kind]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


@pytest.mark.parametrize("crd", ALL, ids=lambda crd: crd["metadata"]["name"])
def test_every_crd_is_valid_by_our_own_rules(crd):
    assert not rules.problems(crd)
    assert not cel_rules.problems(crd)


def nodes(schema, path="."):
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from nodes(inner, f"{path}/{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")


@pytest.mark.parametrize("crd", ALL, ids=lambda crd: crd["metadata"]["name"])
def test_every_schema_is_structural(crd):
    """Each node has a type, and only keywords that kube-apiserver takes in a structural schema."""
    allowed = {"type", "properties", "required", "items", "enum", "format", "minimum", "maximum"}
    allowed |= {"default", "x-kubernetes-list-type", "x-kubernetes-list-map-keys", "description"}
    allowed |= {
        "minItems",
        "maxItems",
        "maxLength",
        "pattern",
        "additionalProperties",
        "x-kubernetes-validations",
    }
    if crd in KEDA:  # what we do not know of theirs is refused by name, not dropped
        allowed.add("x-kubernetes-preserve-unknown-fields")
    for path, node in nodes(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]):
        assert node["type"] in ("object", "array", "string", "integer", "boolean"), path
        assert node.keys() <= allowed, path
        assert set(node.get("required", ())) <= node.get("properties", {}).keys(), path


@pytest.mark.parametrize("crd", ALL, ids=lambda crd: crd["metadata"]["name"])
def test_every_printed_column_is_in_the_schema(crd):
    version = crd["spec"]["versions"][0]
    for column in version["additionalPrinterColumns"]:
        if column["jsonPath"].startswith(".metadata.") or "[?" in column["jsonPath"]:
            continue
        node = version["schema"]["openAPIV3Schema"]
        for part in column["jsonPath"].strip(".").split("."):
            node = node["properties"][part]
        assert node["type"] == column["type"], column["name"]


def test_the_coordinates_are_those_our_clients_use():
    for kind in (kinds.AGENT, kinds.POOL, kinds.BID, kinds.ENDPOINT, kinds.GPU_LEASE):
        spec = BY_KIND[kind.kind]["spec"]
        assert spec["group"] == kind.group
        assert spec["names"]["plural"] == kind.plural
        assert spec["versions"][0]["name"] == kind.version
        assert (spec["scope"] == "Namespaced") is kind.namespaced


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("Agent", {"owner": "ann", "priority": 0}),
        ("Agent", {"owner": "ann", "priority": 1001}),
        ("Bid", {"gpus": 0, "maxPrice": "1"}),
        ("Bid", {"gpus": 1025, "maxPrice": "1"}),
        ("Pool", {"product": "H100", "noticeSeconds": -1}),
        ("Pool", {"product": "H100", "epochSeconds": 0}),
        ("Pool", {"product": "H100", "targetUtilisationPercent": 101}),
    ],
)
def test_what_the_struct_refuses_the_schema_refuses(kind, spec):
    struct = {"Agent": AgentSpec, "Bid": BidSpec, "Pool": PoolSpec}[kind]
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(spec, struct)
    properties = schema(kind)["properties"]["spec"]["properties"]
    assert any(
        not properties[name]["minimum"] <= value <= properties[name]["maximum"]
        for name, value in spec.items()
        if "minimum" in properties[name]
    )


def test_a_default_of_the_struct_is_a_default_of_the_schema():
    properties = schema("Pool")["properties"]["spec"]["properties"]
    assert {name: node["default"] for name, node in properties.items() if "default" in node} == {
        "chain": [8, 4, 2, 1],
        "clearing": "greedy",
        "divides": "whole",
        "heavyRestartSeconds": 180,
        "idleSeconds": 300,
        "maxLots": 16,
        "floorPrice": "0.10",
        "noticeSeconds": 30,
        "restartSeconds": 30,
        "epochSeconds": 60,
        "sellBy": ["memory", "bidplane.dev/pcieLinkWidth", "bidplane.dev/nvlinksPerPeer"],
        "targetUtilisationPercent": 92,
        "floatOwnerPercent": 25,
        "longestTermSeconds": 14_400,
        "termOwnerPercent": 25,
        "termPercent": 50,
    }


def test_enums_are_closed_in_the_schema():
    properties = crds.schema_of(spec=BidStatus)["properties"]
    assert properties["phase"]["enum"] == ["Waiting", "Won", "Ended", "Refused"]


def test_a_type_without_a_schema_is_refused_when_the_crds_are_made():
    class Odd(msgspec.Struct):
        when: float

    with pytest.raises(TypeError, match="no schema"):
        crds.schema_of(spec=Odd)


def test_lists_of_structs_and_enums():
    class Colour(enum.StrEnum):
        RED = "Red"

    class Inner(msgspec.Struct):
        colour: Colour

    class Outer(msgspec.Struct):
        many: list[Inner]

    assert crds.schema_of(spec=Outer) == {
        "type": "object",
        "required": ["many"],
        "properties": {
            "many": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["colour"],
                    "properties": {"colour": {"type": "string", "enum": ["Red"]}},
                },
            }
        },
    }


@pytest.mark.kube
def test_a_real_api_server_establishes_them(cluster, tmp_path):
    """Structural, by the judgement of kube-apiserver itself."""
    wanted = tmp_path / "crds.json"
    wanted.write_bytes(msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": ALL}))
    cluster.kubectl("apply", "-f", str(wanted))
    cluster.kubectl("wait", "--for=condition=Established", "--timeout=30s", "-f", str(wanted))
    got = msgspec.json.decode(cluster.kubectl("get", "-f", str(wanted), "-o", "json").stdout)
    for crd in got["items"]:
        refusals = {"NonStructuralSchema", "Terminating"}
        said = {c["type"] for c in crd["status"]["conditions"] if c["status"] == "True"}
        assert not said & refusals, crd["metadata"]["name"]
    # What can be sold by a chain is known there, too.
    pool = {"apiVersion": kinds.POOL.api_version, "kind": "Pool", "metadata": {"name": "box"}}
    for sizes, refusal in (([6, 4, 1], "each size must divide the one before"), ([3, 1], "")):
        wanted.write_bytes(
            msgspec.json.encode(pool | {"spec": {"product": "L40S", "chain": sizes}})
        )
        done = cluster.kubectl("apply", "-f", str(wanted), check=not refusal)
        assert refusal in done.stderr
    assert "box" in cluster.kubectl("get", "pools").stdout


def chain_rules(sizes):
    """What the CEL rules of the schema say of a chain, on our planes as on a real cluster."""
    plan = cel_rules.plan(schema("Pool"))
    return [cause.message for cause in cel_rules.violations(plan, {"spec": {"chain": sizes}})]


@given(st.lists(st.sampled_from([1, 1, 2, 3, 4, 6, 8, 12]), min_size=1, max_size=5))
def test_the_schema_refuses_the_chains_that_cannot_be_counted(sizes):
    assert bool(chain_rules(sizes)) == bool(chain_problem(sizes))


@given(st.lists(st.integers(1, 4), max_size=4))
def test_every_chain_whose_sizes_divide_the_one_before_is_taken(factors):
    sizes = sorted({1, *itertools.accumulate(factors, lambda a, b: a * b)}, reverse=True)
    assert chain_problem(sizes) is None
    assert chain_rules(sizes) == []


@pytest.mark.parametrize(
    ("sizes", "ours", "theirs"),
    [
        (
            [6, 4, 1],
            "4 does not divide 6: each size must divide",
            "each size must divide the one before",
        ),
        ([6, 3], "it ends in 3, and must end in 1: [6, 3, 1]", "it must end in 1"),
        ([1, 3], "largest first: [3, 1]", "the largest first"),
        ([3, 3, 1], "name each size once", "name each size once"),
        ([], "it names no size", ""),
        ([3, 0], "0 is no number of GPUs", ""),
    ],
)
def test_a_chain_is_refused_with_the_reason(sizes, ours, theirs):
    assert ours in chain_problem(sizes)
    if theirs:
        assert theirs in chain_rules(sizes)[0]
    else:
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({"product": "H100", "chain": sizes}, PoolSpec)
