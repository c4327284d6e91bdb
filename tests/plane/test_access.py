"""RBAC: who may do what, who may give it away, and tokens of service accounts."""

from __future__ import annotations

import secrets
from typing import Any

import pytest

from bidplane.runtime.identity.credentials import InvalidToken

from .conftest import Answer, Embedded, Endpoint, config_map

RBAC = "/apis/rbac.authorization.k8s.io/v1"
REVIEWS = "/apis/authorization.k8s.io/v1"
TOKENS = "/api/v1/namespaces/{ns}/serviceaccounts/default/token"
MERGE = "application/merge-patch+json"
PODS = {"apiGroups": [""], "resources": ["pods"]}


class As:
    """The endpoint, as somebody else."""

    def __init__(self, endpoint: Endpoint, user: str, *groups: str, token: str = "") -> None:
        self._endpoint, self._token = endpoint, token
        self._headers = [("Impersonate-User", user)] if user else []
        self._headers += [("Impersonate-Group", group) for group in groups]

    def __call__(self, method: str, path: str, body: Any = None, **params: Any) -> Answer:
        headers = list(self._headers)
        if self._token:
            headers.append(("Authorization", f"Bearer {self._token}"))
        media = params.pop("media", "application/json")
        return self._endpoint.raw(method, path, body, headers, media, **params)


def _grant(endpoint: Endpoint, user: str, *rules: dict[str, Any], cluster: bool = False) -> None:
    name = f"t-{secrets.token_hex(4)}"
    subject = {"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}
    scope = "" if cluster else "/namespaces/{ns}"
    prefix = "cluster" if cluster else ""
    kind = "ClusterRole" if cluster else "Role"
    endpoint.ok(
        "POST", f"{RBAC}{scope}/{prefix}roles", {"metadata": {"name": name}, "rules": [*rules]}
    )
    binding = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name},
        "subjects": [subject],
    }
    endpoint.ok("POST", f"{RBAC}{scope}/{prefix}rolebindings", binding)


def _user() -> str:
    return f"bob-{secrets.token_hex(3)}"


@pytest.mark.parametrize(
    ("method", "path", "words"),
    [
        ("GET", "/api/v1/namespaces/{ns}/pods", 'cannot list resource "pods" in API group ""'),
        ("GET", "/api/v1/namespaces/{ns}/pods/x", 'cannot get resource "pods"'),
        ("GET", "/api/v1/namespaces/{ns}/pods/x/log", 'cannot get resource "pods/log"'),
        ("DELETE", "/api/v1/namespaces/{ns}/pods", 'cannot deletecollection resource "pods"'),
        ("GET", "/api/v1/nodes", 'cannot list resource "nodes" in API group "" at the cluster'),
        ("GET", "/apis/apps/v1/nope", 'cannot list resource "nope" in API group "apps"'),
        ("GET", "/metrics", 'cannot get path "/metrics"'),
    ],
)
def test_nothing_is_allowed_that_was_not_granted(
    endpoint: Endpoint, method: str, path: str, words: str
) -> None:
    answer = As(endpoint, "bob")(method, path)
    assert answer.code == 403, answer.body
    assert answer.body["reason"] == "Forbidden"
    assert 'User "bob"' in answer.body["message"]
    assert words in answer.body["message"]
    assert As(endpoint, "bob")("GET", "/version").code == 200


def test_a_role_allows_what_it_says(endpoint: Endpoint) -> None:
    user = _user()
    bob = As(endpoint, user)
    endpoint.ok("POST", "/api/v1/namespaces/{ns}/configmaps", config_map("a", x="1"))
    endpoint.ok("POST", "/api/v1/namespaces/{ns}/configmaps", config_map("b", x="1"))
    named = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["a"]}
    _grant(endpoint, user, named | {"verbs": ["get", "patch"]}, PODS | {"verbs": ["list"]})
    maps = "/api/v1/namespaces/{ns}/configmaps"
    endpoint.eventually(lambda: bob("GET", f"{maps}/a").code == 200)
    assert bob("GET", f"{maps}/b").code == 403
    assert bob("GET", maps).code == 403
    assert bob("PATCH", f"{maps}/a", {"data": {"x": "2"}}, media=MERGE).code == 200
    assert bob("DELETE", f"{maps}/a").code == 403
    assert bob("GET", "/api/v1/namespaces/{ns}/pods").code == 200
    assert bob("GET", "/api/v1/pods").code == 403
    assert bob("GET", "/api/v1/namespaces/{ns}/pods", watch="true").code == 403


def test_groups_and_default_roles(endpoint: Endpoint) -> None:
    group = f"team-{secrets.token_hex(3)}"
    binding = {
        "metadata": {"name": "team"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
        "subjects": [{"kind": "Group", "name": group}],
    }
    made = endpoint.ok("POST", f"{RBAC}/namespaces/{{ns}}/rolebindings", binding)
    assert made["subjects"][0]["apiGroup"] == "rbac.authorization.k8s.io"
    member = As(endpoint, "bob", group)
    path = "/api/v1/namespaces/{ns}/configmaps"
    endpoint.eventually(lambda: member("POST", path, config_map("made")).code == 201)
    assert member("GET", f"{RBAC}/namespaces/{{ns}}/roles").code == 403
    assert member("GET", "/api/v1/namespaces/default/secrets").code == 403
    roles = {
        role["metadata"]["name"] for role in endpoint.ok("GET", f"{RBAC}/clusterroles")["items"]
    }
    assert {"cluster-admin", "admin", "edit", "view", "system:discovery"} <= roles
    change = {"roleRef": {**binding["roleRef"], "name": "admin"}}  # type: ignore[dict-item]
    fixed = endpoint.call(
        "PATCH", f"{RBAC}/namespaces/{{ns}}/rolebindings/team", change, media=MERGE
    )
    assert fixed.code == 422
    assert "field is immutable" in fixed.body["message"]


def test_nobody_gives_away_what_they_do_not_have(endpoint: Endpoint) -> None:
    user = _user()
    bob = As(endpoint, user)
    manage = {
        "apiGroups": ["rbac.authorization.k8s.io"],
        "resources": ["roles", "rolebindings"],
        "verbs": ["create", "update", "patch", "get"],
    }
    _grant(endpoint, user, manage, PODS | {"verbs": ["get"]})
    roles, bindings = f"{RBAC}/namespaces/{{ns}}/roles", f"{RBAC}/namespaces/{{ns}}/rolebindings"
    fine = {"metadata": {"name": "r"}, "rules": [PODS | {"verbs": ["get"]}]}
    endpoint.eventually(lambda: bob("POST", roles, fine).code == 201)
    more = PODS | {"verbs": ["get", "list"], "resources": ["pods", "pods/log"]}
    refused = bob("POST", roles, {"metadata": {"name": "q"}, "rules": [more]})
    assert refused.code == 403
    assert refused.body["message"].endswith(
        "is attempting to grant RBAC permissions not currently held:\n"
        '{APIGroups:[""], Resources:["pods"], Verbs:["list"]}\n'
        '{APIGroups:[""], Resources:["pods/log"], Verbs:["get" "list"]}'
    )
    assert bob("PATCH", f"{roles}/r", {"rules": [more]}, media=MERGE).code == 403
    assert bob("PATCH", f"{roles}/r", {"metadata": {"labels": {"a": "b"}}}, media=MERGE).code == 200
    head = {"apiGroup": "rbac.authorization.k8s.io"}
    bind = {
        "metadata": {"name": "b"},
        "roleRef": head | {"kind": "ClusterRole", "name": "admin"},
        "subjects": [head | {"kind": "User", "name": user}],
    }
    assert bob("POST", bindings, bind).code == 403
    missing = bind | {"roleRef": head | {"kind": "Role", "name": "nope"}}
    assert bob("POST", bindings, missing).code == 404
    assert (
        bob("POST", bindings, bind | {"roleRef": head | {"kind": "Role", "name": "r"}}).code == 201
    )
    escalate = {"apiGroups": [head["apiGroup"]], "resources": ["roles"], "verbs": ["escalate"]}
    _grant(endpoint, user, escalate)
    endpoint.eventually(
        lambda: bob("PATCH", f"{roles}/r", {"rules": [more]}, media=MERGE).code == 200
    )


@pytest.mark.parametrize(
    ("rules", "field"),
    [
        ([{"apiGroups": [""], "resources": ["pods"]}], "rules[0].verbs"),
        ([{"verbs": ["get"], "resources": ["pods"]}], "rules[0].apiGroups"),
        ([{"verbs": ["get"], "nonResourceURLs": ["/x"]}], "rules[0].nonResourceURLs"),
    ],
)
def test_roles_must_say_something(
    endpoint: Endpoint, rules: list[dict[str, Any]], field: str
) -> None:
    body = {"metadata": {"name": "r"}, "rules": rules}
    answer = endpoint.call("POST", f"{RBAC}/namespaces/{{ns}}/roles", body)
    assert answer.code == 422
    assert field in [cause["field"] for cause in answer.body["details"]["causes"]]


def test_questions_about_access(endpoint: Endpoint) -> None:
    about = {"verb": "create", "resource": "pods", "namespace": endpoint.namespace}
    mine = endpoint.ok(
        "POST", f"{REVIEWS}/selfsubjectaccessreviews", {"spec": {"resourceAttributes": about}}
    )
    assert mine["status"]["allowed"] is True
    user = _user()
    theirs = {"spec": {"user": user, "resourceAttributes": about}}
    path = f"{REVIEWS}/subjectaccessreviews"
    assert endpoint.ok("POST", path, theirs)["status"] == {"allowed": False}
    _grant(endpoint, user, PODS | {"verbs": ["create"]})
    endpoint.eventually(lambda: endpoint.ok("POST", path, theirs)["status"]["allowed"])
    reason = endpoint.ok("POST", path, theirs)["status"]["reason"]
    assert reason.startswith("RBAC: allowed by RoleBinding ")
    assert reason.endswith(f'to User "{user}"')
    local = f"{REVIEWS}/namespaces/{{ns}}/localsubjectaccessreviews"
    body = theirs | {"metadata": {"namespace": endpoint.namespace}}
    assert endpoint.ok("POST", local, body)["status"]["allowed"] is True
    rules = As(endpoint, user)(
        "POST", f"{REVIEWS}/selfsubjectrulesreviews", {"spec": {"namespace": endpoint.namespace}}
    )
    assert PODS | {"verbs": ["create"]} in rules.body["status"]["resourceRules"]
    group = {
        "spec": {
            "groups": ["system:authenticated"],
            "nonResourceAttributes": {"verb": "get", "path": "/version"},
        }
    }
    assert endpoint.ok("POST", path, group)["status"]["allowed"] is True
    assert endpoint.call("POST", path, {"spec": {"user": user}}).code == 422
    assert endpoint.call("POST", path, {"spec": {"resourceAttributes": about}}).code == 422


def test_impersonation_is_a_right(endpoint: Endpoint) -> None:
    who = As(endpoint, "bob", "team")(
        "POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {}
    )
    told = who.body["status"]["userInfo"]
    assert told["username"] == "bob"
    assert told["groups"] == ["team", "system:authenticated"]
    account = As(endpoint, f"system:serviceaccount:{endpoint.namespace}:x")
    told = account("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {}).body
    assert f"system:serviceaccounts:{endpoint.namespace}" in told["status"]["userInfo"]["groups"]
    token = endpoint.ok("POST", TOKENS, {"spec": {}})["status"]["token"]
    refused = As(endpoint, "root", token=token)("GET", "/api/v1/pods")
    assert refused.code == 403
    assert "cannot impersonate" in refused.body["message"]


def test_tokens_of_service_accounts(endpoint: Endpoint) -> None:
    made = endpoint.eventually(lambda: _token(endpoint))
    token = made["status"]["token"]
    assert made["spec"]["expirationSeconds"] == 600
    pod = As(endpoint, "", token=token)
    who = pod("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {}).body
    name = f"system:serviceaccount:{endpoint.namespace}:default"
    assert who["status"]["userInfo"]["username"] == name
    assert "system:serviceaccounts" in who["status"]["userInfo"]["groups"]
    assert pod("GET", "/api/v1/namespaces/{ns}/pods").code == 403
    review = endpoint.ok(
        "POST", "/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": token}}
    )
    assert review["status"]["authenticated"] is True
    assert review["status"]["user"]["username"] == name
    bad = endpoint.ok(
        "POST", "/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": token + "x"}}
    )
    assert "authenticated" not in bad["status"]
    assert "invalid bearer token" in bad["status"]["error"]
    short = endpoint.call("POST", TOKENS, {"spec": {"expirationSeconds": 10}})
    assert short.code == 422
    other = endpoint.ok("POST", TOKENS, {"spec": {"audiences": ["elsewhere"]}})["status"]["token"]
    assert As(endpoint, "", token=other)("GET", "/version").code == 401
    endpoint.ok("DELETE", "/api/v1/namespaces/{ns}/serviceaccounts/default")
    endpoint.eventually(lambda: pod("GET", "/version").code == 401)
    again = "/api/v1/namespaces/{ns}/serviceaccounts/default"
    endpoint.eventually(lambda: endpoint.call("GET", again).code == 200)


def _token(endpoint: Endpoint) -> Any:
    answer = endpoint.call("POST", TOKENS, {"spec": {"expirationSeconds": 600}})
    return answer.body if answer.code == 201 else None


def test_a_token_dies_with_its_pod(endpoint: Endpoint) -> None:
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    endpoint.eventually(lambda: _token(endpoint))
    endpoint.ok("POST", "/api/v1/namespaces/{ns}/pods", pod)
    bound = {"spec": {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p"}}}
    token = endpoint.ok("POST", TOKENS, bound)["status"]["token"]
    running = As(endpoint, "", token=token)
    assert running("GET", "/version").code == 200
    endpoint.ok("DELETE", "/api/v1/namespaces/{ns}/pods/p", gracePeriodSeconds=0)
    endpoint.eventually(lambda: running("GET", "/version").code == 401)


def test_every_namespace_is_furnished(endpoint: Endpoint) -> None:
    path = "/api/v1/namespaces/{ns}/configmaps/kube-root-ca.crt"
    endpoint.eventually(lambda: endpoint.call("GET", path).code == 200)
    assert endpoint.ok("GET", path)["data"]["ca.crt"] == endpoint.ca_file.read_text()
    account = "/api/v1/namespaces/{ns}/serviceaccounts/default"
    endpoint.eventually(lambda: endpoint.call("GET", account).code == 200)
    names = {one["metadata"]["name"] for one in endpoint.ok("GET", "/api/v1/namespaces")["items"]}
    assert {"default", "kube-system", "kube-public", "kube-node-lease"} <= names


def test_aggregated_roles(endpoint: Endpoint) -> None:
    label = f"bidplane.test/{secrets.token_hex(3)}"
    sum_name, part = f"sum-{secrets.token_hex(3)}", f"part-{secrets.token_hex(3)}"
    selector = {"clusterRoleSelectors": [{"matchLabels": {label: "true"}}]}
    endpoint.ok(
        "POST",
        f"{RBAC}/clusterroles",
        {"metadata": {"name": sum_name}, "aggregationRule": selector},
    )
    rules = [PODS | {"verbs": ["get"]}]
    body = {"metadata": {"name": part, "labels": {label: "true"}}, "rules": rules}
    endpoint.ok("POST", f"{RBAC}/clusterroles", body)
    path = f"{RBAC}/clusterroles/{sum_name}"
    endpoint.eventually(lambda: endpoint.ok("GET", path).get("rules") == rules)
    endpoint.ok("DELETE", f"{RBAC}/clusterroles/{part}")
    endpoint.eventually(lambda: not endpoint.ok("GET", path).get("rules"))
    endpoint.ok("DELETE", path)


# What only we have: many planes behind one address.


def test_an_account_is_nobody_in_another_plane(embedded: Embedded, plane: Endpoint) -> None:
    path = "/api/v1/namespaces/default/serviceaccounts/default/token"
    token = plane.ok("POST", path, {"spec": {}})["status"]["token"]
    other = embedded.make(f"o-{secrets.token_hex(3)}")
    assert As(other, "", token=token)("GET", "/version").code == 403
    host = embedded.make("host")
    token = host.ok("POST", path, {"spec": {}})["status"]["token"]
    assert As(host, "", token=token)("GET", "/version").code == 200
    assert As(plane, "", token=token)("GET", "/version").code == 403, "the host's owners only"
    with pytest.raises(InvalidToken):
        embedded.tokens.verify(token, now=0)


def test_default_roles_can_change_and_go(embedded: Embedded, plane: Endpoint) -> None:
    path = f"{RBAC}/clusterroles/view"
    before = plane.ok("GET", path)
    plane.ok("PATCH", path, {"metadata": {"labels": {"mine": "yes"}}}, media=MERGE)
    assert plane.ok("GET", path)["metadata"]["uid"] == before["metadata"]["uid"]
    plane.ok("DELETE", f"{RBAC}/clusterroles/edit")
    assert plane.call("GET", f"{RBAC}/clusterroles/edit").code == 404
    other = embedded.make(f"o-{secrets.token_hex(3)}")
    assert "mine" not in other.ok("GET", path)["metadata"]["labels"]
    assert other.call("GET", f"{RBAC}/clusterroles/edit").code == 200
