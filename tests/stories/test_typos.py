"""A typo of one user is named and refused, and stops nobody else: the real CLI and kubectl."""

from __future__ import annotations

import pytest

from .conftest import Installation, pod

pytestmark = [pytest.mark.slow, pytest.mark.kubectl]


def test_an_amount_that_no_ledger_holds_is_refused_with_the_largest(
    bidplane: Installation,
) -> None:
    refused = bidplane.bidplane(
        "agent", "create", "typo", "--refill", "99999999999", "--priority", "10", code=2
    )
    assert "--refill" in refused
    assert "1000000000.00" in refused
    assert len(refused.splitlines()) == 1
    # As a product, and by the API too.
    product = ["--refill", "100000001", "--priority", "10"]
    assert "largest hourly grant" in bidplane.bidplane("agent", "create", "typo", *product, code=2)
    eleven = bidplane.bidplane("agent", "create", "typo", "--priority", "11", code=2)
    assert "--priority must be from 1 to 10, not 11" in eleven
    bidplane.bidplane("plane", "kubeconfig", "host")
    agent = {
        "apiVersion": "bidplane.dev/v1alpha1",
        "kind": "Agent",
        "metadata": {"name": "typo"},
        "spec": {"owner": "o", "refill": "100000001", "priority": 10},
    }
    assert "largest hourly grant is 1000000000.00" in bidplane.apply("host", agent, code=1)
    agent["spec"] = {"owner": "o", "priority": 11}
    assert "priority is from 1 to 10" in bidplane.apply("host", agent, code=1)
    agent["spec"] = {"owner": "o", "refill": "1", "carryOver": "1000000001"}
    assert "carryOver is too much" in bidplane.apply("host", agent, code=1)
    assert "typo" not in bidplane.bidplane("agent", "list")

    # More digits than any ledger has, and amounts of a Bid.
    bidplane.bidplane("agent", "create", "poor", "--refill", "1")
    funded = bidplane.bidplane("wallet", "fund", "poor", "9" * 20, code=2)
    assert "the largest amount is 1000000000.00" in funded
    bid = {"apiVersion": "bidplane.dev/v1alpha1", "kind": "Bid", "metadata": {"name": "typo"}}
    for field, largest in (("maxPrice", "price is 1000000.00"), ("budget", "1000000000.00")):
        spec = {"gpus": 1, field: "9" * 20}
        refused = bidplane.apply("poor", {**bid, "spec": spec}, code=1)
        assert f'The Bid "typo" is invalid: spec.{field}: ' in refused
        assert f"the largest {'amount is ' if field == 'budget' else ''}{largest}" in refused

    bidplane.bidplane("agent", "create", "rich", "--refill", "1000000000")
    assert "the most in one wallet" in bidplane.bidplane("wallet", "fund", "rich", "1", code=2)
    bidplane.bidplane("agent", "create", "next", "--refill", "10")
    bidplane.apply("next", pod("train", price="1.00"))
    bidplane.kubectl("next", "wait", "--for=condition=Ready", "pod/train", "--timeout=30s")
    assert "the ledger is sound" in bidplane.bidplane("ledger", "verify")


def test_a_bid_may_have_any_name_and_its_lease_is_where_the_bid_was(
    bidplane: Installation,
) -> None:
    """Also a name as orders have."""
    name = "order-0123456789abcdef"
    bidplane.bidplane("agent", "create", "namer", "--refill", "100")
    bidplane.kubectl("namer", "create", "namespace", "team")
    metadata = {"name": name, "namespace": "team"}
    bid = {"apiVersion": "bidplane.dev/v1alpha1", "kind": "Bid", "metadata": metadata}
    bidplane.apply("namer", {**bid, "spec": {"gpus": 1, "maxPrice": "9.00"}})
    bidplane.kubectl("namer", "wait", f"bid/{name}", "-nteam", "--for=jsonpath={.status.phase}=Won")
    guest = pod("guest", gpus=1)
    guest["metadata"]["namespace"] = "team"
    guest["metadata"]["annotations"]["bidplane.dev/bid"] = name
    bidplane.apply("namer", guest)
    bidplane.kubectl("namer", "wait", "-nteam", "--for=condition=Ready", "pod/guest")
    (lease,) = bidplane.get("namer", "gpuleases", "-A")["items"]
    assert lease["metadata"]["namespace"] == "team"
    assert lease["spec"]["planeNamespace"] == "team"
    bidplane.kubectl("namer", "delete", "bid", name, "-nteam")
    bidplane.kubectl("namer", "delete", "pod", "guest", "-nteam")
    bidplane.kubectl("namer", "wait", "-A", "--for=delete", "gpuleases", "--all", "--timeout=60s")


def test_an_annotation_that_nobody_reads_is_warned_about(bidplane: Installation) -> None:
    """Without the warning, the pod would bid at the list price, and nobody would know why."""
    bidplane.bidplane("agent", "create", "speller", "--refill", "10")
    misspelt = pod("work")
    misspelt["metadata"]["annotations"]["bidplane.dev/maxprice"] = "0.01"
    warning = (
        "Warning: metadata.annotations[bidplane.dev/maxprice]: Bidplane has no such annotation;"
        " did you mean bidplane.dev/max-price?"
    )
    assert warning in bidplane.apply("speller", misspelt)
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "work"},
        "spec": {
            "suspend": True,
            "template": {"metadata": misspelt["metadata"], "spec": misspelt["spec"]},
        },
    }
    assert "spec.template.metadata.annotations[bidplane.dev/maxprice]" in bidplane.apply(
        "speller", job
    )
    bidplane.kubectl("speller", "delete", "pod,job", "--all", "--now")
    assert "Warning" not in bidplane.apply("speller", pod("well", price="1.00"))
    bidplane.bidplane("agent", "delete", "speller")
