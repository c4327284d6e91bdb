"""RBAC as pure functions: permissions of a rule, escalation checks, role aggregation."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from bidplane.wire import data
from bidplane.wire.selectors import label_selector

GROUP = "rbac.authorization.k8s.io"
CLUSTER_ROLES, ROLES = f"clusterroles.{GROUP}", f"roles.{GROUP}"
CLUSTER_BINDINGS, BINDINGS = f"clusterrolebindings.{GROUP}", f"rolebindings.{GROUP}"
ACCOUNT = "system:serviceaccount:"

Rule = Mapping[str, Any]
Object = Mapping[str, Any]


class Attributes(msgspec.Struct, frozen=True, kw_only=True):
    """The attributes of a request: a verb, and a resource or a non-resource path."""

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""  # of a non-resource request

    @property
    def full_resource(self) -> str:
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


def allows(rule: Rule, request: Attributes) -> bool:
    """Return true if the rule allows the request."""
    if not _has(rule.get("verbs"), request.verb):
        return False
    if request.path:
        return any(_url(pattern, request.path) for pattern in rule.get("nonResourceURLs") or ())
    names = rule.get("resourceNames")
    return (
        _has(rule.get("apiGroups"), request.group)
        and _resource(rule.get("resources"), request.resource, request.subresource)
        and (not names or request.name in names)
    )


def _has(values: Sequence[str] | None, value: str) -> bool:
    return bool(values) and ("*" in values or value in values)  # type: ignore[operator]


def _resource(values: Sequence[str] | None, resource: str, subresource: str) -> bool:
    if not values:
        return False
    full = f"{resource}/{subresource}" if subresource else resource
    return "*" in values or full in values or (bool(subresource) and f"*/{subresource}" in values)


def _url(pattern: str, path: str) -> bool:
    if pattern == "*" or pattern == path:
        return True
    return pattern.endswith("*") and path.startswith(pattern.rstrip("*"))


def is_subject(
    subject: Mapping[str, Any], user: str, groups: Sequence[str], namespace: str
) -> bool:
    """Return true if a subject is this user; accounts default to the binding's namespace."""
    match subject.get("kind"):
        case "User":
            return bool(user) and subject.get("name") == user
        case "Group":
            return subject.get("name") in groups
        case "ServiceAccount":
            space = subject.get("namespace") or namespace
            return bool(space) and user == f"{ACCOUNT}{space}:{subject.get('name')}"
        case _:
            return False


def account_groups(user: str) -> tuple[str, ...]:
    """Return the groups of a service account."""
    namespace = user.removeprefix(ACCOUNT).partition(":")[0]
    return ("system:serviceaccounts", f"system:serviceaccounts:{namespace}")


# Escalation.


def missing(requested: Iterable[Rule], granted: Sequence[Rule]) -> list[dict[str, Any]]:
    """Return the parts of `requested` that no granted rule covers, verbs merged."""
    lacking = [atom for rule in requested for atom in _atoms(rule) if not _covered(atom, granted)]
    merged: dict[tuple[str, ...], dict[str, Any]] = {}
    for atom in lacking:
        at = tuple(json.dumps(atom.get(key)) for key in _PARTS[:-1])
        into = merged.setdefault(at, {**atom, "verbs": []})
        into["verbs"] += [verb for verb in atom["verbs"] if verb not in into["verbs"]]
    return [merged[at] for at in sorted(merged)]


_PARTS = ("apiGroups", "resources", "resourceNames", "nonResourceURLs", "verbs")
_SHOWN = {
    "apiGroups": "APIGroups",
    "resources": "Resources",
    "resourceNames": "ResourceNames",
    "nonResourceURLs": "NonResourceURLs",
    "verbs": "Verbs",
}


def shown(rule: Rule) -> str:
    """Return a rule as upstream prints it in a Forbidden message."""
    parts = [
        f"{_SHOWN[key]}:[{' '.join(json.dumps(value) for value in rule[key])}]"
        for key in _PARTS
        if rule.get(key)
    ]
    return "{" + ", ".join(parts) + "}"


def _atoms(rule: Rule) -> Iterable[dict[str, Any]]:
    for verb in rule.get("verbs") or ():
        for url in rule.get("nonResourceURLs") or ():
            yield {"verbs": [verb], "nonResourceURLs": [url]}
        for group in rule.get("apiGroups") or ():
            for resource in rule.get("resources") or ():
                atom = {"verbs": [verb], "apiGroups": [group], "resources": [resource]}
                names = rule.get("resourceNames") or ()
                if not names:
                    yield atom
                for name in names:
                    yield {**atom, "resourceNames": [name]}


def _covered(atom: Rule, granted: Sequence[Rule]) -> bool:
    return any(_covers(rule, atom) for rule in granted)


def _covers(rule: Rule, atom: Rule) -> bool:
    if not _has(rule.get("verbs"), atom["verbs"][0]):
        return False
    if "nonResourceURLs" in atom:
        url = atom["nonResourceURLs"][0]
        return any(_url(pattern, url) for pattern in rule.get("nonResourceURLs") or ())
    resource, _, subresource = atom["resources"][0].partition("/")
    names, requested = rule.get("resourceNames") or (), atom.get("resourceNames") or ()
    return (
        _has(rule.get("apiGroups"), atom["apiGroups"][0])
        and _resource(rule.get("resources"), resource, subresource)
        and (not names or (bool(requested) and all(name in names for name in requested)))
    )


# Aggregation.


def aggregated(role: Object, other_roles: Iterable[Object]) -> list[Any] | None:
    """Return the rules that a role aggregates by its selectors; None if it has none."""
    chosen = (role.get("aggregationRule") or {}).get("clusterRoleSelectors")
    if chosen is None:
        return None
    selectors = [label_selector(selector) for selector in chosen]
    rules: list[Any] = []
    name = role["metadata"].get("name")
    for other in sorted(other_roles, key=lambda role: str(role["metadata"].get("name"))):
        if other["metadata"].get("name") == name:
            continue
        if any(selector.matches(other) for selector in selectors):
            rules += [rule for rule in other.get("rules") or () if rule not in rules]
    return rules


@functools.cache
def defaults() -> Mapping[str, tuple[dict[str, Any], ...]]:
    """Return the roles and bindings of a new plane, by storage, without per-plane fields."""
    table = data.roles()
    objects_by_storage: dict[str, tuple[dict[str, Any], ...]] = {}
    for plural, kind in (
        ("clusterroles", "ClusterRole"),
        ("clusterrolebindings", "ClusterRoleBinding"),
        ("roles", "Role"),
        ("rolebindings", "RoleBinding"),
    ):
        objects = []
        for row in table[plural]:
            meta = {key: row[key] for key in _META if key in row}
            rest = {key: value for key, value in row.items() if key not in _META}
            objects.append({"kind": kind, "apiVersion": f"{GROUP}/v1", "metadata": meta, **rest})
        objects_by_storage[f"{plural}.{GROUP}"] = tuple(objects)
    _add_up(objects_by_storage[CLUSTER_ROLES])
    return objects_by_storage


_META = ("name", "namespace", "labels", "annotations")


def _add_up(roles: Sequence[dict[str, Any]]) -> None:
    """Aggregate repeatedly: `admin` includes `edit`, which includes `view`."""
    for _ in range(3):
        for role in roles:
            rules = aggregated(role, roles)
            if rules is not None:
                role["rules"] = rules
