"""A fleet file says what it says, or names what is wrong in it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidplane.errors import UserError
from bidplane.node import fleet as fleets
from bidplane.node.inventory import DeclaredDevices
from bidplane.node.inventory.slices import slices_of
from bidplane.wire.names import subdomain_problems, value_problems


def load(tmp_path, text):
    file = tmp_path / "fleet.yaml"
    file.write_text(text)
    return fleets.load(file)


def test_gpus_is_short_for_one_domain(tmp_path):
    fleet = load(tmp_path, "nodes: [{name: a, product: H100, gpus: 3}]")
    assert fleet.nodes[0].link_domains() == [[0, 1, 2]]


def test_devices_know_their_product_and_their_link(tmp_path):
    fleet = load(tmp_path, "nodes: [{name: a, product: H100, domains: [[0, 1], [2]]}]")
    spec = slices_of(fleets.machine_of(fleet.nodes[0]))[0]["spec"]
    assert spec["nodeName"] == "a"
    assert [
        (d["name"], d["attributes"]["bidplane.dev/linkDomain"]["string"]) for d in spec["devices"]
    ] == [("gpu-0", "a/0"), ("gpu-1", "a/0"), ("gpu-2", "a/1")]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("nodes: []", "no node"),
        ("nodes: [{name: a}]", "product"),
        ("nodes: [{name: a, product: H, gpus: 1, colour: red}]", "colour"),
        ("nodes: [{name: a, product: H}]", "1 to 64 GPUs"),
        ("nodes: [{name: a, product: H, gpus: -1}]", "1 to 64 GPUs"),
        ("nodes: [{name: a, product: H, gpus: 1000000000}]", "1 to 64 GPUs"),
        ("nodes: [{name: a, product: H, domains: [[0], []]}]", "at least one"),
        ("nodes: [{name: a, product: H, domains: [[0], [0]]}]", "one GPU twice"),
        ("nodes: [{name: a, product: H, domains: [[-1]]}]", "less than zero"),
        ("nodes: [{name: a, product: H, gpus: 2, domains: [[0]]}]", "only one of"),
        ("nodes: [{name: a, product: H, cards: [{width: 3}]}]", "3 is no PCIe width"),
        ("nodes: [{name: a, product: H, cards: [{width: 16, maxWidth: 8}]}]", "maxWidth 8"),
        ("nodes: [{name: a, product: H, cards: [{nvlink: [1]}]}]", "does not exist"),
        ("nodes: [{name: a, product: H, gpus: 1, cards: [{}]}]", "only one of"),
        ("nodes: [{name: a, product: H, gpus: 1}, {name: a, product: H, gpus: 1}]", "twice"),
        ("nodes: [{name: A_b, product: H, gpus: 1}]", "node 'A_b'"),
        ("nodes: [{name: a, product: NVIDIA H100 80GB, gpus: 1}]", "the product"),
        ("nodes: [{name: a, product: '', gpus: 1}]", "the product"),
        ("nodes: [{name: a, product: H, gpus: 1, memory: much}]", "memory"),
        ("nodes: [{name: a, product: H, gpus: 1}, {name: b, product: h, gpus: 1}]", "upper"),
        ("{nodes: [{name: a, product: H, gpus: 1}], pools: [{product: X}]}", "no node has"),
        (
            "{nodes: [{name: a, product: H, gpus: 3}], pools: [{product: H, chain: [3, 2, 1]}]}",
            "the pool of 'H': chain: 2 does not divide 3",
        ),
        (
            "{nodes: [{name: a, product: H, gpus: 3}], pools: [{product: H, chain: [0]}]}",
            ">= 1 - at `\\$.pools",
        ),
        (
            "{nodes: [{name: a, product: H, gpus: 1}], pools: [{product: H, floorPrice: free}]}",
            "floorPrice",
        ),
        (
            "{nodes: [{name: a, product: H, gpus: 1}], pools: [{product: H, noticeSeconds: -1}]}",
            "noticeSeconds",
        ),
        (
            "{nodes: [{name: a, product: H, gpus: 1}], pools: [{product: H}, {product: H}]}",
            "twice",
        ),
        ("nodes: {", "not valid"),
        ("", "not valid"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, text, problem):
    with pytest.raises(UserError, match=problem):
        load(tmp_path, text)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match="cannot read the fleet file"):
        fleets.load(tmp_path / "none.yaml")


@settings(max_examples=50)
@given(st.binary(max_size=60))
def test_any_file_is_a_fleet_or_a_user_error(tmp_path_factory, content):
    file = tmp_path_factory.mktemp("fleet") / "fleet.yaml"
    file.write_bytes(content)
    with pytest.raises(UserError):
        fleets.load(file)


@given(st.from_regex(r"[-A-Za-z0-9. _/]{1,70}", fullmatch=True))
def test_a_product_that_is_taken_makes_a_valid_label_and_a_valid_pool(product):
    node = fleets.NodeDeclaration(name="a", product=product, gpus=1)
    if not list(fleets._problems(fleets.Fleet(nodes=[node]))):
        assert not subdomain_problems(product.lower())
        assert not value_problems(product)


def test_a_node_may_keep_work_from_degraded_cards(tmp_path):
    text = "nodes: [{name: a, product: H, taintDegraded: true, cards: [{width: 4, maxWidth: 16}]}]"
    (node,) = load(tmp_path, text).nodes
    (slice_,) = DeclaredDevices(node).slices()
    (taint,) = slice_["spec"]["devices"][0]["taints"]
    assert (taint["key"], taint["effect"]) == ("bidplane.dev/degraded", "NoSchedule")
