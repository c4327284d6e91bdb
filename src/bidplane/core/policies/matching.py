"""The matching of requests to policies and bindings, as in upstream's admission."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from bidplane.api.kinds import Object
from bidplane.wire.selectors import label_selector


class MatchTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A resource in one of the versions in which its kind is served."""

    group: str
    version: str
    resource: str
    kind: str
    subresource: str = ""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


class AdmissionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request as admission sees it."""

    operation: str  # CREATE | UPDATE | DELETE | CONNECT
    target: MatchTarget
    equivalents: tuple[MatchTarget, ...] = ()  # the same objects in other versions
    namespace: str = ""
    name: str = ""
    object: Object | None = None
    old: Object | None = None
    namespace_object: Object | None = None


def match(criteria: Object, request: AdmissionRequest) -> MatchTarget | None:
    """
    Return the target that `criteria` (a MatchResources) match, or None.

    With `matchPolicy: Equivalent`, a rule for one version matches requests in the others.
    """
    if not _namespace_selected(criteria.get("namespaceSelector"), request):
        return None
    if not _object_selected(criteria.get("objectSelector"), request):
        return None
    targets: tuple[MatchTarget, ...] = (request.target,)
    if criteria.get("matchPolicy") != "Exact":
        targets += request.equivalents
    if _first(criteria.get("excludeResourceRules") or (), targets, request) is not None:
        return None
    rules = criteria.get("resourceRules") or ()
    return _first(rules, targets, request) if rules else request.target


def _first(
    rules: Iterable[Object], targets: Iterable[MatchTarget], request: AdmissionRequest
) -> MatchTarget | None:
    rules = list(rules)
    for target in targets:
        if any(_rule_matches(rule, target, request) for rule in rules):
            return target
    return None


def _rule_matches(rule: Object, target: MatchTarget, request: AdmissionRequest) -> bool:
    names = rule.get("resourceNames") or ()
    return (
        _listed(rule.get("operations"), request.operation)
        and _listed(rule.get("apiGroups"), target.group)
        and _listed(rule.get("apiVersions"), target.version)
        and _in_scope(rule.get("scope") or "*", request)
        and any(_resource_matches(text, target) for text in rule.get("resources") or ())
        and (not names or request.name in names)
    )


def _listed(values: Any, value: str) -> bool:
    return any(item in ("*", value) for item in values or ())


def _in_scope(scope: str, request: AdmissionRequest) -> bool:
    if scope == "*":
        return True
    return (scope == "Namespaced") == bool(request.namespace)


def _resource_matches(text: str, target: MatchTarget) -> bool:
    resource, _, subresource = text.partition("/")
    return resource in ("*", target.resource) and (
        subresource == target.subresource or (subresource == "*" and "/" in text)
    )


def _namespace_selected(selector: Object | None, request: AdmissionRequest) -> bool:
    if not selector:
        return True
    if request.target.resource == "namespaces" and not request.target.group:
        labelled = request.object if request.object is not None else request.old
    elif not request.namespace:
        return True  # what is in no namespace cannot be exempted by one
    else:
        labelled = request.namespace_object
    return labelled is not None and label_selector(selector).matches(labelled)


def _object_selected(selector: Object | None, request: AdmissionRequest) -> bool:
    if not selector:
        return True
    chosen = label_selector(selector)
    return any(obj is not None and chosen.matches(obj) for obj in (request.object, request.old))
