"""Who may write which pod: what a server refuses in a plane of an agent."""

from __future__ import annotations

from typing import Any

import pytest

from bidplane.api.kinds import AGENT, POD
from bidplane.core.bidding.admission import admission

Json = dict[str, Any]


def pod(**spec: Any) -> Json:
    container = {"name": "main", "image": "busybox"}
    return {
        "metadata": {"name": "p", "namespace": "d"},
        "spec": {"containers": [container], **spec},
    }


def agent(*, trusted: bool) -> Json:
    return {
        "apiVersion": AGENT.api_version,
        "kind": AGENT.kind,
        "metadata": {"name": "a"},
        "spec": {"owner": "ann", "trusted": trusted},
    }


@pytest.mark.parametrize(
    ("owner", "is_refused"),
    [
        (agent(trusted=False), True),
        (agent(trusted=True), False),
        (None, False),  # a plane of no agent is the owner's own
        ({**agent(trusted=True), "spec": {"trusted": "yes"}}, True),  # unreadable: not trusted
    ],
)
def test_only_an_untrusted_agent_is_kept_from_the_machine(
    owner: Json | None, is_refused: bool
) -> None:
    admit = admission(lambda plane: owner)
    problems = admit("a", "CREATE", POD, pod(hostNetwork=True), None)
    assert bool(problems) is is_refused
    if is_refused:
        assert "spec.hostNetwork" in problems[0]


def test_a_pod_keeps_the_access_that_it_had() -> None:
    admit = admission(lambda plane: agent(trusted=False))
    old = pod(hostNetwork=True)
    assert admit("a", "UPDATE", POD, pod(hostNetwork=True, nodeName="n"), old) == []
    (problem,) = admit("a", "UPDATE", POD, pod(hostNetwork=True, hostPID=True), old)
    assert "spec.hostPID" in problem
