"""When a pod keeps too much on its node's disk, and in which words it is told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidplane.core.pods import storage

MIB = 1 << 20


def pod(*volumes, **limits):
    containers = [
        {"name": name, "resources": {"limits": {"ephemeral-storage": limit}} if limit else {}}
        for name, limit in limits.items()
    ]
    return {"spec": {"volumes": list(volumes), "containers": containers or [{"name": "main"}]}}


def empty(name, **spec):
    return {"name": name, "emptyDir": spec}


def test_an_emptydir_past_its_limit():
    small = pod(empty("cache", sizeLimit="1Mi"), empty("free"))
    assert storage.is_limited(small)
    assert storage.overuse(small, {"cache": MIB, "free": 90 * MIB}, {}) == ""
    assert storage.overuse(small, {"cache": MIB + 1}, {}) == (
        'Usage of EmptyDir volume "cache" exceeds the limit "1Mi". '
    )


def test_all_that_a_pods_containers_may_keep_together():
    two = pod(empty("a"), main="1Mi", side="1Mi")
    assert storage.overuse(two, {"a": MIB}, {"main": MIB // 2, "side": MIB // 2}) == ""
    said = storage.overuse(two, {"a": MIB}, {"main": MIB // 2, "side": MIB // 2 + 1})
    assert said == (
        "Pod ephemeral local storage usage exceeds the total limit of containers 2097152. "
    )
    # Memory is not disk.
    memory = pod(empty("a", medium="Memory"), main="1Mi")
    assert storage.overuse(memory, {"a": 9 * MIB}, {}) == ""


def test_a_container_past_its_own():
    two = pod(main="1Mi", side="9Mi")
    assert storage.overuse(two, {}, {"main": 2 * MIB}) == (
        'Container main exceeded its local ephemeral storage limit "1Mi". '
    )


@pytest.mark.parametrize("volume", [empty("a"), {"name": "a", "hostPath": {"path": "/"}}])
def test_a_pod_without_limits_is_not_looked_at(volume):
    assert not storage.is_limited(pod(volume))


@given(st.integers(0, 1 << 40), st.integers(1, 1 << 40))
def test_nobody_is_evicted_below_a_limit_and_everybody_above(used, limit):
    one = pod(empty("a", sizeLimit=str(limit)))
    assert bool(storage.overuse(one, {"a": used}, {})) == (used > limit)
