"""What a pod asks for is read exactly, or refused by name: never guessed, never a crash."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidplane.api import kinds, labels
from bidplane.core.bidding import asks

GPU = labels.GPU_RESOURCE


def container(gpus=None, **more):
    resources = {} if gpus is None else {"resources": {"limits": {GPU: gpus}}}
    return {"name": "main", **resources, **more}


def pod(*containers, init=(), annotations=None):
    spec = {"containers": list(containers)}
    if init:
        spec["initContainers"] = list(init)
    return {"metadata": {"name": "train", "annotations": annotations}, "spec": spec}


def gpus(*containers, init=()):
    return asks.ask_of(pod(*containers, init=init)).gpus


@pytest.mark.parametrize("count", ["2", 2])
def test_a_count_is_read_as_text_or_number(count):
    assert gpus(container(count)) == 2


def test_containers_run_together():
    assert gpus(container("2"), container("3"), container()) == 5


def test_init_containers_run_before_the_others():
    assert gpus(container("2"), init=[container("3"), container("1")]) == 3
    assert gpus(container("4"), init=[container("3"), container("1")]) == 4


def test_sidecars_run_beside_what_comes_after_them():
    sidecar = container("1", restartPolicy="Always")
    assert gpus(container("2"), init=[sidecar]) == 3
    assert gpus(container("1"), init=[sidecar, container("4")]) == 5
    assert gpus(container("1"), init=[container("4"), sidecar]) == 4


def test_a_request_without_a_limit_counts():
    asked = {"name": "main", "resources": {"requests": {GPU: "2"}}}
    assert gpus(asked) == 2


def test_price_and_pool_are_annotations():
    annotations = {labels.MAX_PRICE: "2.10", labels.POOL: "h100"}
    ask = asks.ask_of(pod(container("1"), annotations=annotations))
    assert ask == asks.PodAsk(gpus=1, max_price="2.10", pool="h100")


@pytest.mark.parametrize("absent", [None, {}])
def test_what_is_not_said_is_left_to_the_agent(absent):
    assert asks.ask_of(pod(container("1"), annotations=absent)) == asks.PodAsk(1, "", "")


@pytest.mark.parametrize(
    "count", ["", "-1", "1.5", "1_000", " 2", "２", "1k", "0x2", "two", True, [], "9" * 5000]
)
def test_a_count_that_cannot_be_read_names_its_field(count):
    (problem,) = asks.problems(kinds.POD, pod(container(), container(count)))
    assert problem.startswith(f"spec.containers[1].resources.limits[{GPU}]: ")


def test_more_than_a_bid_can_hold_is_refused_with_the_pod():
    """Else the pod gets in, its bid never does, and nobody says why."""
    assert not asks.problems(kinds.POD, pod(container("1024")))
    (problem,) = asks.problems(kinds.POD, pod(container("1000"), container("25")))
    assert "1025 GPUs" in problem
    assert "1024" in problem


def test_a_price_that_cannot_be_read_names_its_annotation():
    for price in ("", "cheap", "0", "-1"):
        (problem,) = asks.problems(
            kinds.POD, pod(container("1"), annotations={labels.MAX_PRICE: price})
        )
        assert problem.startswith(f"metadata.annotations[{labels.MAX_PRICE}]: ")


def test_every_problem_is_told_at_once():
    bad = pod(container("x"), annotations={labels.MAX_PRICE: "y"})
    assert len(asks.problems(kinds.POD, bad)) == 2


@pytest.mark.parametrize(
    ("field", "value"), [("refill", "a lot"), ("carryOver", "-1"), ("maxPrice", "0")]
)
def test_an_agents_amounts_are_checked(field, value):
    agent = {"metadata": {"name": "trainer"}, "spec": {"owner": "ann", field: value}}
    (problem,) = asks.problems(kinds.AGENT, agent)
    assert problem.startswith(f"spec.{field}: ")


def test_an_agents_name_is_checked():
    agent = {"metadata": {"name": "host"}, "spec": {"owner": "ann"}}
    (problem,) = asks.problems(kinds.AGENT, agent)
    assert problem.startswith("metadata.name: ")


@pytest.mark.parametrize(("kind", "field"), [(kinds.BID, "maxPrice"), (kinds.POOL, "floorPrice")])
def test_prices_of_bids_and_pools_are_checked(kind, field):
    assert not asks.problems(kind, {"metadata": {}, "spec": {field: "1.50"}})
    (problem,) = asks.problems(kind, {"metadata": {}, "spec": {field: "free"}})
    assert problem.startswith(f"spec.{field}: ")


def test_other_kinds_ask_for_nothing():
    assert asks.problems(kinds.NODE, {"metadata": {}, "spec": {}}) == []


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=5,
)
quantities = st.dictionaries(st.sampled_from([GPU, "cpu"]), junk)
resources = st.none() | st.fixed_dictionaries(
    {}, optional={"limits": st.none() | quantities, "requests": st.none() | quantities}
)
containers = st.lists(
    st.fixed_dictionaries({"name": st.text()}, optional={"resources": resources}), max_size=3
)
texts = st.none() | st.dictionaries(
    st.sampled_from([labels.MAX_PRICE, labels.POOL, "note"]), st.text()
)
any_pods = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries({"name": st.text()}, optional={"annotations": texts}),
        "spec": st.fixed_dictionaries(
            {}, optional={"containers": containers, "initContainers": st.none() | containers}
        ),
    }
)


@given(any_pods)
def test_any_pod_is_read_or_refused_with_a_sentence(found):
    problems = asks.problems(kinds.POD, found)
    assert all(isinstance(problem, str) and problem for problem in problems)
    try:
        ask = asks.ask_of(found)
    except ValueError:
        assert problems
    else:
        assert 0 <= ask.gpus <= 1024


@given(
    st.sampled_from([kinds.AGENT, kinds.BID, kinds.POOL]),
    st.text(),
    st.dictionaries(st.sampled_from(["refill", "carryOver", "maxPrice", "floorPrice"]), st.text()),
)
def test_any_terms_are_taken_or_refused_with_a_sentence(kind, name, spec):
    for problem in asks.problems(kind, {"metadata": {"name": name}, "spec": spec}):
        assert ": " in problem


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"gpus": 2, "share": "1/2"}, "set gpus to 1"),
        ({"gpus": 1, "share": "1/2", "spread": True}, "set gpus to 1"),
        ({"gpus": 64, "blocks": 64}, "the most is 1024"),
        (
            {"gpus": 1, "otherwise": [{"gpus": 3, "share": "1g.10gb", "maxPrice": "1.00"}]},
            "spec.otherwise[0]",
        ),
    ],
)
def test_a_shape_that_nobody_could_sell_is_refused(spec, says):
    (said,) = asks.problems(kinds.BID, {"metadata": {}, "spec": {"maxPrice": "1.00", **spec}})
    assert says in said


def test_gangs_and_parts_are_taken():
    for spec in ({"gpus": 8, "blocks": 4}, {"gpus": 1, "share": "1/2", "blocks": 3}):
        assert asks.problems(kinds.BID, {"metadata": {}, "spec": {"maxPrice": "1", **spec}}) == []


def part_pod(annotations=None, **limits):
    resources = {"limits": {f"nvidia.com/{k.replace('__', '-').replace('_', '.')}": v
                            for k, v in limits.items()}}  # fmt: skip
    return {
        "metadata": {"name": "p", "annotations": annotations or {}},
        "spec": {"containers": [{"name": "main", "resources": resources}]},
    }


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"budget": "99999999999"}, "the largest amount is 1000000000.00"),
        ({"budget": "9" * 30}, "the largest amount is 1000000000.00"),
        ({"budget": "0"}, "buys nothing"),
        ({"deadline": "tomorrow"}, "is not a time"),
    ],
)
def test_a_bids_budget_and_deadline_are_checked_where_they_are_written(spec, problem):
    (field,) = spec
    (sentence,) = asks.problems(kinds.BID, {"metadata": {}, "spec": {"maxPrice": "1.00", **spec}})
    assert sentence.startswith(f"spec.{field}: ")
    assert problem in sentence


@pytest.mark.parametrize(
    ("pod", "gpus", "share"),
    [
        (part_pod({"gpu-fraction": "0.5"}), 1, "0.5"),
        (part_pod({"gpu-fraction": "0.3"}), 1, "0.3"),
        (part_pod({"gpu-fraction": "0.125"}), 1, "0.125"),
        (part_pod({"gpu-fraction": "1/4"}), 1, "0.25"),
        (part_pod(mig__1g_10gb="1"), 1, "1g.10gb"),
        (part_pod(gpu="2"), 2, ""),
    ],
)
def test_a_pod_asks_for_a_part_in_the_ways_people_know(pod, gpus, share):
    ask = asks.ask_of(pod)
    assert (ask.gpus, ask.share) == (gpus, share)
    assert asks.problems(kinds.POD, pod) == []


@pytest.mark.parametrize(
    ("pod", "says"),
    [
        (part_pod({"gpu-fraction": "0.9999"}), "less than 1"),
        (part_pod({"gpu-fraction": "half"}), "not a part of a GPU"),
        (part_pod({"gpu-fraction": "0.009"}), "not a part of a GPU"),
        (part_pod({"gpu-fraction": "1"}), "not a part of a GPU"),
        (part_pod({"gpu-fraction": "1/0"}), "not a part of a GPU"),
        (part_pod({"gpu-fraction": "0.5"}, gpu="1"), "more than one way"),
        (part_pod(mig__1g_10gb="1", mig__3g_40gb="1"), "more than one way"),
        (part_pod(mig__1g_10gb="2"), "a pod for each"),
        (part_pod({"bidplane.dev/gang": "g"}, gpu="1"), "gang-size"),
        (part_pod({"bidplane.dev/gang": "G!", "bidplane.dev/gang-size": "2"}, gpu="1"), "name"),
    ],
)
def test_a_part_that_cannot_be_had_is_refused_with_what_to_do(pod, says):
    (said,) = asks.problems(kinds.POD, pod)
    assert says in said


def annotated(**annotations):
    named = {key.replace("_", "-"): value for key, value in annotations.items()}
    return asks.ask_of(pod(container(), annotations=named))


def test_an_amount_of_memory_is_read():
    assert annotated(gpu_memory="12000").memory == 12000


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"memory": "much"}, "is not an amount of memory"),
        ({"memory": "20Gi", "share": "0.5"}, "set one of them"),
        ({"memory": "20Gi", "gpus": 2}, "set gpus to 1"),
        ({"memory": "20Gi", "oneNode": True}, "bid for it alone"),
        ({"memory": "20Gi", "wholeDomain": True}, "wholeDomain asks for a whole link domain"),
    ],
)
def test_a_bid_for_memory_is_for_one_part(fields, words):
    bid = {"metadata": {}, "spec": {"gpus": 1, **fields}}
    assert words in " ".join(asks.problems(kinds.BID, bid))


@pytest.mark.parametrize(
    ("annotations", "words"),
    [
        ({"gpu_memory": "2Gi"}, "not a number of MiB"),
        ({"gpu_memory": "0"}, "not a number of MiB"),
        ({"gpu_memory": "2000", "gpu_fraction": "0.5"}, "more than one way"),
        ({"gpu_fraction": "0.5", "gpu_fraction_num_devices": "2"}, "use a pod for each"),
    ],
)
def test_a_part_that_cannot_be_sold_is_refused_by_name(annotations, words):
    with pytest.raises(ValueError, match=words):
        annotated(**annotations)


@pytest.mark.parametrize(
    ("notes", "term", "urgent"),
    [
        ({"term": "120"}, 120, False),
        ({"preemptible": "false"}, 3600, False),
        ({"preemptible": "false", "work-seconds": "90"}, 90, False),
        ({"preemptible": "true", "urgency": "high"}, 0, True),
        ({"urgency": "low"}, 0, False),
    ],
)
def test_how_a_pod_wants_to_have_its_lease(notes, term, urgent):
    annotations = {f"bidplane.dev/{name}": text for name, text in notes.items()}
    ask = asks.ask_of(part_pod(annotations, gpu="1"))
    assert (ask.term_seconds, ask.urgent) == (term, urgent)


def test_a_gangs_size_alone_is_for_pods_of_a_controller():
    alone = part_pod({"bidplane.dev/gang-size": "2"}, gpu="1")
    assert "gang too" in asks.problems(kinds.POD, alone)[0]
    owned = {**alone, "metadata": {**alone["metadata"], "ownerReferences": [{"kind": "Job"}]}}
    assert asks.problems(kinds.POD, owned) == []
