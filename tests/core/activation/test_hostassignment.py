"""Host names are the owner's to give; whoever asks for one second is told who has it."""

from bidplane.api import labels
from bidplane.api.agent import AgentSpec
from bidplane.api.reading import Invalid, read_endpoint
from bidplane.core.activation.hostassignment import assign_hosts, is_delegated


def endpoint(name, *, agent="alice", at=0, hosts=(), target="", **spec):
    struct = read_endpoint(
        {
            "metadata": {
                "name": f"{agent}-{name}",
                "uid": f"{agent}-{name}",
                "namespace": f"agent-{agent}",
                "creationTimestamp": f"2026-11-18T20:00:{at:02}Z",
                "labels": {labels.AGENT: agent},
                "annotations": {labels.PLANE_NAMESPACE: "default", labels.PLANE_NAME: name},
            },
            "spec": {
                "target": {"deployment": target or name, "service": name},
                "hosts": list(hosts),
                **spec,
            },
        }
    )
    assert not isinstance(struct, Invalid), struct
    return struct


def assignments(*endpoints, agents=None):
    specs = {name: AgentSpec(owner="o", hosts=hosts) for name, hosts in (agents or {}).items()}
    return assign_hosts(
        endpoints, {"alice": AgentSpec(owner="o"), "bob": AgentSpec(owner="o"), **specs}, "example"
    )


def test_an_endpoint_without_hosts_has_its_own_name():
    assert assignments(endpoint("llm"))["alice-llm"].hosts == ("llm.alice.example",)


def test_patterns():
    assert is_delegated("a.b.example", ["*.example"])
    assert not is_delegated("example", ["*.example"])
    assert not is_delegated(".example", ["*.example"])
    assert not is_delegated("evilexample", ["*.example"])
    assert is_delegated("example", ["other", "example"])


def test_a_name_that_is_not_delegated_is_refused_with_what_is():
    assignment = assignments(endpoint("llm", hosts=["llm.bob.example"]))["alice-llm"]
    assert (assignment.hosts, assignment.reason) == ((), "HostNotDelegated")
    assert "*.alice.example" in assignment.message
    assert "spec.hosts" in assignment.message
    agents = {"alice": ("shop.test", "*.a.test")}
    assert assignments(endpoint("llm", hosts=["shop.test", "x.a.test"]), agents=agents)[
        "alice-llm"
    ].hosts
    assert assignments(endpoint("llm"), agents=agents)["alice-llm"].reason == "HostNotDelegated"


def test_of_two_agents_the_older_endpoint_has_the_name_with_all_its_paths():
    agents = {"alice": ("shop.test",), "bob": ("shop.test",)}
    old = endpoint("a", at=1, hosts=["shop.test"], pathPrefixes=["/a"])
    young = endpoint("b", agent="bob", at=2, hosts=["shop.test"], pathPrefixes=["/b"])
    result = assignments(young, old, agents=agents)
    assert result[old.uid].hosts == ("shop.test",)
    assert result[young.uid].reason == "HostTaken"
    assert "alice" not in result[young.uid].message, "names of other agents are the owner's"
    assert assignments(young, agents=agents)[young.uid].hosts, "free once the older one has gone"


def test_endpoints_of_one_agent_share_a_name_if_their_rules_differ():
    first = endpoint("a", at=1, hosts=["x.alice.example"], pathPrefixes=["/a"])
    other = endpoint("b", at=2, hosts=["x.alice.example"], pathPrefixes=["/b"])
    same = endpoint("c", at=3, hosts=["x.alice.example"], pathPrefixes=["/c", "/a/"])
    result = assignments(same, other, first)
    assert result[first.uid].hosts
    assert result[other.uid].hosts
    assert result[same.uid].reason == "HostTaken"
    assert "default/a, created at 2026-11-18T20:00:01Z" in result[same.uid].message


def test_a_deployment_has_one_endpoint():
    first = endpoint("a", at=1, target="web")
    second = endpoint("b", at=2, target="web")
    result = assignments(second, first)
    assert result[first.uid].hosts
    assert (result[second.uid].reason, "default/a" in result[second.uid].message) == (
        "TargetTaken",
        True,
    )


def test_an_endpoint_of_no_agent_has_no_names():
    assert assignments(endpoint("a", agent="gone")) == {}
