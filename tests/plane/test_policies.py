"""
ValidatingAdmissionPolicies are enforced; what a plane does not have is refused by name.

The messages are upstream's own: the same assertions run against a real kube-apiserver, which takes
a moment to notice a policy.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .conftest import Answer, Endpoint, config_map

GROUP = "/apis/admissionregistration.k8s.io/v1"
POLICIES, BINDINGS = (
    f"{GROUP}/validatingadmissionpolicies",
    f"{GROUP}/validatingadmissionpolicybindings",
)
MAPS = "/api/v1/namespaces/{ns}/configmaps"
MERGE = "application/merge-patch+json"
FEW = "object.data.size() < 2"


def rule(resources: list[str], operations: list[str], **more: Any) -> dict[str, Any]:
    return {
        "apiGroups": ["*"],
        "apiVersions": ["*"],
        "operations": operations,
        "resources": resources,
        **more,
    }


def rules(*given: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"resourceRules": list(given), **more}


class Bound:
    """Makes policies for the namespace of one test, and removes them."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint, self.name = endpoint, f"p-{secrets.token_hex(4)}"
        self._made: list[str] = []

    def policy(self, **spec: Any) -> dict[str, Any]:
        return {
            "metadata": {"name": self.name},
            "spec": {
                "matchConstraints": rules(rule(["configmaps"], ["CREATE", "UPDATE"])),
                "validations": [{"expression": FEW}],
                **spec,
            },
        }

    def binding(self, **spec: Any) -> dict[str, Any]:
        here = {"matchLabels": {"kubernetes.io/metadata.name": self.endpoint.namespace}}
        return {
            "metadata": {"name": self.name},
            "spec": {
                "policyName": self.name,
                "validationActions": ["Deny"],
                "matchResources": {"namespaceSelector": here},
                **spec,
            },
        }

    def make(
        self,
        policy: dict[str, Any],
        binding: dict[str, Any],
        denied: Callable[[], Answer],
    ) -> Answer:
        """Make both, and return the first answer of `denied` that tells of them."""
        self.endpoint.ok("POST", POLICIES, policy)
        self._made.append(f"{POLICIES}/{self.name}")
        self.endpoint.ok("POST", BINDINGS, binding)
        self._made.append(f"{BINDINGS}/{self.name}")
        answers: list[Answer] = []

        def told() -> bool:
            answers[:] = [denied()]
            said = json.dumps(answers[0].body) + answers[0].headers.get("warning", "")
            return self.name in said

        self.endpoint.eventually(told)
        return answers[0]

    def close(self) -> None:
        for path in reversed(self._made):
            self.endpoint.call("DELETE", path)


@pytest.fixture
def bound(endpoint: Endpoint) -> Iterator[Bound]:
    made = Bound(endpoint)
    yield made
    made.close()


def post(endpoint: Endpoint, name: str = "m", **data: str) -> Answer:
    return endpoint.call("POST", MAPS, config_map(name, **data), dryRun="All")


def test_a_request_that_a_policy_does_not_admit_is_denied(endpoint: Endpoint, bound: Bound) -> None:
    answer = bound.make(bound.policy(), bound.binding(), lambda: post(endpoint, a="1", b="2"))
    who = f"ValidatingAdmissionPolicy '{bound.name}' with binding '{bound.name}' denied request: "
    assert (answer.code, answer.body["reason"]) == (422, "Invalid")
    assert answer.body["message"] == f'configmaps "m" is forbidden: {who}failed expression: {FEW}'
    assert answer.body["details"] == {
        "name": "m",
        "kind": "configmaps",
        "causes": [{"message": f"{who}failed expression: {FEW}"}],
    }
    assert post(endpoint, a="1").code == 201
    failed = post(endpoint)
    words = f"expression '{FEW}' resulted in error: no such key: data"
    assert (failed.code, failed.body["message"]) == (
        422,
        f'configmaps "m" is forbidden: {who}{words}',
    )
    # Every way in.
    endpoint.ok("POST", MAPS, config_map("m", a="1"))
    more = {"data": {"b": "2"}}
    assert endpoint.call("PATCH", f"{MAPS}/m", more, media=MERGE).code == 422
    assert endpoint.call("PUT", f"{MAPS}/m", config_map("m", a="1", b="2")).code == 422
    applied = json.dumps(config_map("m", a="1", b="2")).encode()
    answer = endpoint.call(
        "PATCH", f"{MAPS}/m", applied, media="application/apply-patch+yaml", fieldManager="t",
        force="true",
    )  # fmt: skip
    assert answer.code == 422
    assert endpoint.ok("GET", f"{MAPS}/m")["data"] == {"a": "1"}


def test_a_policy_that_ignores_failures_denies_only_what_is_false(
    endpoint: Endpoint, bound: Bound
) -> None:
    policy = bound.policy(failurePolicy="Ignore")
    answer = bound.make(policy, bound.binding(), lambda: post(endpoint, a="1", b="2"))
    assert answer.code == 422
    assert post(endpoint).code == 201


def test_a_binding_can_warn(endpoint: Endpoint, bound: Bound) -> None:
    binding = bound.binding(validationActions=["Warn", "Audit"])
    answer = bound.make(bound.policy(), binding, lambda: post(endpoint, a="1", b="2"))
    assert answer.code == 201
    who = f"ValidatingAdmissionPolicy '{bound.name}' with binding '{bound.name}'"
    words = f"Validation failed for {who}: failed expression: {FEW}"
    assert answer.headers["warning"] == f'299 - "{words}"'
    assert "warning" not in post(endpoint, a="1").headers


def test_a_policy_gives_its_own_message_and_reason(endpoint: Endpoint, bound: Bound) -> None:
    told = {
        "expression": FEW,
        "message": "too many",
        "messageExpression": "'has ' + string(object.data.size())",
        "reason": "Forbidden",
    }
    failing = {
        "expression": "object.metadata.name != 'n'",
        "message": "not n",
        "messageExpression": "string(object.nope)",
    }
    policy = bound.policy(validations=[told, failing])
    answer = bound.make(policy, bound.binding(), lambda: post(endpoint, a="1", b="2"))
    assert (answer.code, answer.body["reason"]) == (403, "Forbidden")
    assert answer.body["message"].endswith("denied request: has 2")
    assert post(endpoint, "n", a="1").body["message"].endswith("denied request: not n")


def test_conditions_choose_the_requests(endpoint: Endpoint, bound: Bound) -> None:
    conditions = [
        {"name": "fails", "expression": "object.metadata.labels.x == 'y'"},
        {"name": "only-m", "expression": "object.metadata.name == 'm'"},
    ]
    policy = bound.policy(matchConditions=conditions)
    answer = bound.make(policy, bound.binding(), lambda: post(endpoint, a="1", b="2"))
    words = "expression 'object.metadata.labels.x == 'y'' resulted in error: no such key: labels"
    assert answer.body["message"].endswith(words)
    # One that is false counts more than one that fails.
    assert post(endpoint, "n", a="1", b="2").code == 201


def test_variables_are_evaluated_where_they_are_used(endpoint: Endpoint, bound: Bound) -> None:
    variables = [
        {"name": "count", "expression": "object.data.size()"},
        {"name": "many", "expression": "variables.count > 1"},
        {"name": "since", "expression": "timestamp('2026-01-01T00:00:00Z')"},
    ]
    validations = [
        {"expression": "object.metadata.name == 'free' || !variables.many"},
        {"expression": "variables.since < timestamp('2027-01-01T00:00:00Z')"},
    ]
    policy = bound.policy(variables=variables, validations=validations)
    answer = bound.make(policy, bound.binding(), lambda: post(endpoint, a="1", b="2"))
    assert answer.body["message"].endswith("failed expression: " + validations[0]["expression"])
    assert post(endpoint, a="1").code == 201
    words = (
        'composited variable "many" fails to evaluate: composited variable "count" fails to'
        " evaluate: no such key: data"
    )
    assert post(endpoint).body["message"].endswith(words)
    assert post(endpoint, "free").code == 201


def test_a_policy_sees_the_request_and_its_namespace(endpoint: Endpoint, bound: Bound) -> None:
    told = (
        "[request.operation, request.kind.kind, request.resource.resource, request.name,"
        " request.namespace, string(request.dryRun), namespaceObject.metadata.name,"
        " string(oldObject == null), string(has(request.subResource)),"
        " string(request.userInfo.groups.exists(g, g == 'system:authenticated'))].join(' ')"
    )
    policy = bound.policy(validations=[{"expression": "false", "messageExpression": told}])
    answer = bound.make(policy, bound.binding(), lambda: post(endpoint, a="1"))
    space = endpoint.namespace
    words = f"CREATE ConfigMap configmaps m {space} true {space} true false true"
    assert answer.body["message"].endswith(f"denied request: {words}")


def test_parameters_come_from_objects(endpoint: Endpoint, bound: Bound) -> None:
    policy = bound.policy(
        paramKind={"apiVersion": "v1", "kind": "ConfigMap"},
        validations=[{"expression": "object.data.size() <= int(params.data.most)"}],
        matchConditions=[{"name": "m", "expression": "object.metadata.name == 'm'"}],
    )
    reference = {"name": "limits", "parameterNotFoundAction": "Deny"}
    answer = bound.make(policy, bound.binding(paramRef=reference), lambda: post(endpoint, a="1"))
    words = "failed to configure binding: no params found for policy binding with `Deny`"
    assert f"{words} parameterNotFoundAction" in answer.body["message"]
    other = endpoint.call("POST", MAPS, config_map("limits", most="1"))
    assert other.code == 422  # the binding cannot be asked for any ConfigMap
    elsewhere = {**reference, "namespace": "default", "name": bound.name}
    settings = "/api/v1/namespaces/default/configmaps"
    endpoint.ok("POST", settings, config_map(bound.name, most="1"))
    endpoint.ok("PATCH", f"{BINDINGS}/{bound.name}", {"spec": {"paramRef": elsewhere}}, media=MERGE)
    endpoint.eventually(lambda: post(endpoint, a="1").code == 201)
    assert post(endpoint, a="1", b="2").code == 422
    endpoint.ok("DELETE", f"{settings}/{bound.name}")


def test_parameters_of_a_kind_that_is_not_served_deny(endpoint: Endpoint, bound: Bound) -> None:
    policy = bound.policy(paramKind={"apiVersion": "x.test/v1", "kind": "Nope"})
    # Upstream asks before it looks at bindings: this policy is about one name only.
    policy["spec"]["matchConstraints"]["resourceRules"][0]["resourceNames"] = ["m"]
    here = {"matchLabels": {"kubernetes.io/metadata.name": endpoint.namespace}}
    policy["spec"]["matchConstraints"]["namespaceSelector"] = here
    reference = {"name": "x", "parameterNotFoundAction": "Deny"}
    answer = bound.make(policy, bound.binding(paramRef=reference), lambda: post(endpoint, a="1"))
    words = "failed to configure policy: failed to find resource referenced by paramKind:"
    assert f"{words} 'x.test/v1, Kind=Nope'" in answer.body["message"]


def test_a_policy_can_forbid_deletion(endpoint: Endpoint, bound: Bound) -> None:
    endpoint.ok("POST", MAPS, config_map("m", a="1"))
    endpoint.ok("POST", MAPS, config_map("n", a="1"))
    policy = bound.policy(
        matchConstraints=rules(rule(["configmaps"], ["DELETE"])),
        validations=[
            {
                "expression": "oldObject.metadata.name != 'm'",
                "messageExpression": "string(object == null) + ' ' + request.name",
            }
        ],
    )

    def delete() -> Answer:
        return endpoint.call("DELETE", f"{MAPS}/m", dryRun="All")

    answer = bound.make(policy, bound.binding(), delete)
    assert answer.code == 422
    assert answer.body["message"].endswith("denied request: true m")
    endpoint.ok("DELETE", f"{MAPS}/n")
    assert endpoint.call("DELETE", f"{MAPS}/m").code == 422
    endpoint.ok("GET", f"{MAPS}/m")


def test_a_policy_about_scale_sees_a_scale(endpoint: Endpoint, bound: Bound) -> None:
    labels = {"app": "x"}
    path = "/apis/apps/v1/namespaces/{ns}/deployments"
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    endpoint.ok("POST", path, {"metadata": {"name": "x"}, "spec": spec})
    policy = bound.policy(
        matchConstraints=rules(rule(["deployments/scale"], ["UPDATE"])),
        validations=[
            {
                "expression": "object.spec.replicas <= 2",
                "messageExpression": "request.kind.kind + ' ' + request.subResource",
            }
        ],
    )

    def scale() -> Answer:
        many = {"spec": {"replicas": 3}}
        return endpoint.call("PATCH", f"{path}/x/scale", many, media=MERGE, dryRun="All")

    answer = bound.make(policy, bound.binding(), scale)
    assert answer.body["message"].endswith("denied request: Scale scale")
    fewer = {"spec": {"replicas": 2}}
    endpoint.ok("PATCH", f"{path}/x/scale", fewer, media=MERGE, dryRun="All")
    # The deployment itself is another resource.
    endpoint.ok("PATCH", f"{path}/x", {"spec": {"replicas": 3}}, media=MERGE, dryRun="All")


def test_a_rule_for_one_version_matches_the_others(endpoint: Endpoint, bound: Bound) -> None:
    one = rule(["horizontalpodautoscalers"], ["CREATE"], apiGroups=["autoscaling"])
    policy = bound.policy(
        matchConstraints=rules({**one, "apiVersions": ["v1"]}),
        validations=[
            {
                "expression": "object.spec.targetCPUUtilizationPercentage < 50",
                "messageExpression": "object.apiVersion + ' ' + request.requestKind.version",
            }
        ],
    )
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "x"}
    usage = {"type": "Utilization", "averageUtilization": 80}
    metric = {"type": "Resource", "resource": {"name": "cpu", "target": usage}}
    scaler = {
        "metadata": {"name": "x"},
        "spec": {"maxReplicas": 3, "scaleTargetRef": target, "metrics": [metric]},
    }
    path = "/apis/autoscaling/v2/namespaces/{ns}/horizontalpodautoscalers"
    answer = bound.make(
        policy, bound.binding(), lambda: endpoint.call("POST", path, scaler, dryRun="All")
    )
    assert answer.body["message"].endswith("denied request: autoscaling/v1 v2")


def test_objects_are_chosen_by_their_labels(endpoint: Endpoint, bound: Bound) -> None:
    chosen = {"matchLabels": {"checked": "yes"}}
    policy = bound.policy(
        matchConstraints=rules(rule(["configmaps"], ["CREATE"]), objectSelector=chosen)
    )

    def labelled() -> Answer:
        made = config_map("m", a="1", b="2")
        made["metadata"]["labels"] = {"checked": "yes"}
        return endpoint.call("POST", MAPS, made, dryRun="All")

    assert bound.make(policy, bound.binding(), labelled).code == 422
    assert post(endpoint, a="1", b="2").code == 201


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"matchConstraints": None}, "spec.matchConstraints: Required value"),
        ({"matchConstraints": {}}, "spec.matchConstraints.resourceRules: Required value"),
        ({"validations": []}, "spec.validations: Required value: validations or auditAnnotations"),
        (
            {"validations": [{"expression": "object.x =="}]},
            'spec.validations[0].expression: Invalid value: "object.x ==": compilation failed',
        ),
        ({"validations": [{"expression": "nope.x"}]}, "compilation failed: ERROR: <input>:1:"),
        (
            {"validations": [{"expression": "'a'"}]},
            "Invalid value: \"'a'\": must evaluate to bool but got string",
        ),
        ({"validations": [{"expression": " "}]}, "Required value: expression is not specified"),
        (
            {"validations": [{"expression": "true", "reason": "Nope"}]},
            'supported values: "Forbidden", "Invalid", "RequestEntityTooLarge"',
        ),
        (
            {"validations": [{"expression": "true", "messageExpression": "1"}]},
            "spec.validations[0].messageExpression: Invalid value: \"1\": must evaluate to string",
        ),
        ({"variables": [{"name": "a-b", "expression": "1"}]}, "must be a valid CEL identifier"),
        (
            {
                "variables": [{"name": "a", "expression": "true"}],
                "validations": [{"expression": "variables.b"}],
            },
            "undefined field 'b'",
        ),
        ({"validations": [{"expression": "params.x == 1"}]}, "undeclared reference to 'params"),
        (
            {"matchConditions": [{"name": "x", "expression": "1"}]},
            "spec.matchConditions[0].expression: Invalid value: \"1\": must evaluate to bool",
        ),
        (
            {"matchConstraints": {"resourceRules": [{}]}},
            "spec.matchConstraints.resourceRules[0].operations: Required value",
        ),
        ({"failurePolicy": "x"}, 'Unsupported value: "x": supported values: "Fail", "Ignore"'),
    ],
)  # fmt: skip
def test_a_policy_that_could_not_be_asked_is_refused(
    endpoint: Endpoint, spec: dict[str, Any], words: str
) -> None:
    answer = endpoint.call("POST", POLICIES, Bound(endpoint).policy(**spec), dryRun="All")
    assert (answer.code, answer.body["reason"]) == (422, "Invalid")
    assert words in answer.body["message"]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"policyName": ""}, "spec.policyName: Required value"),
        ({"validationActions": []}, "spec.validationActions: Required value"),
        ({"validationActions": ["X"]}, 'supported values: "Audit", "Deny", "Warn"'),
        ({"validationActions": ["Deny", "Warn"]}, "must not contain both Deny and Warn"),
        ({"validationActions": ["Deny", "Deny"]}, 'spec.validationActions[1]: Duplicate value: "D'),
        ({"paramRef": {}}, "spec.paramRef: Required value: one of name or selector must be"),
        ({"paramRef": {"name": "x"}}, "spec.paramRef.parameterNotFoundAction: Required value"),
    ],
)
def test_a_binding_that_says_too_little_is_refused(
    endpoint: Endpoint, spec: dict[str, Any], words: str
) -> None:
    answer = endpoint.call("POST", BINDINGS, Bound(endpoint).binding(**spec), dryRun="All")
    assert (answer.code, answer.body["reason"]) == (422, "Invalid")
    assert words in answer.body["message"]


def test_an_authorizer_is_refused_by_name(plane: Endpoint) -> None:
    # Upstream has it.
    source = "authorizer.group('').resource('pods').check('create').allowed()"
    policy = Bound(plane).policy(validations=[{"expression": source}])
    answer = plane.call("POST", POLICIES, policy)
    assert answer.code == 422
    assert "authorizer is not supported by this server" in answer.body["message"]


@pytest.mark.parametrize(
    ("path", "kind", "words"),
    [
        (f"{GROUP}/validatingwebhookconfigurations", "ValidatingWebhookConfiguration", "webhooks"),
        (f"{GROUP}/mutatingwebhookconfigurations", "MutatingWebhookConfiguration", "webhooks"),
        (f"{GROUP}/mutatingadmissionpolicies", "MutatingAdmissionPolicy", "mutates nothing"),
        (
            f"{GROUP}/mutatingadmissionpolicybindings",
            "MutatingAdmissionPolicyBinding",
            "mutates nothing",
        ),
        ("/apis/apiregistration.k8s.io/v1/apiservices", "APIService", "no other API server"),
    ],
)
def test_what_would_do_nothing_is_refused_by_name(
    plane: Endpoint, path: str, kind: str, words: str
) -> None:
    answer = plane.call("POST", path, {"metadata": {"name": "v1.x.test"}})
    assert (answer.code, answer.body["reason"]) == (403, "Forbidden")
    assert f"is forbidden: {kind} is not supported: a plane " in answer.body["message"]
    assert words in answer.body["message"]
    assert plane.ok("GET", path)["items"] == []


def test_pods_that_controllers_make_are_asked_about(plane: Endpoint) -> None:
    bound = Bound(plane)
    policy = bound.policy(
        matchConstraints=rules(rule(["pods"], ["CREATE"])),
        validations=[{"expression": "object.spec.containers.all(c, c.image.startsWith('ok/'))"}],
    )
    plane.ok("POST", POLICIES, policy)
    plane.ok("POST", BINDINGS, bound.binding(matchResources={}))
    pod = {"metadata": {"name": "x"}, "spec": {"containers": [{"name": "c", "image": "bad"}]}}
    answer = plane.call("POST", "/api/v1/namespaces/default/pods", pod)
    assert answer.code == 422
    pod["spec"] = {"containers": [{"name": "c", "image": "ok/image"}]}
    plane.ok("POST", "/api/v1/namespaces/default/pods", pod)


def test_a_policy_cannot_forbid_its_own_removal(plane: Endpoint) -> None:
    bound = Bound(plane)
    everything = rules(rule(["*"], ["*"]))
    policy = bound.policy(matchConstraints=everything, validations=[{"expression": "false"}])
    plane.ok("POST", POLICIES, policy)
    plane.ok("POST", BINDINGS, bound.binding(matchResources={}))
    assert plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": "x"}}).code == 422
    plane.ok("DELETE", f"{BINDINGS}/{bound.name}")
    plane.ok("POST", "/api/v1/namespaces", {"metadata": {"name": "x"}})
