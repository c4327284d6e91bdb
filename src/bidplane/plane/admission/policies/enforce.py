"""
Enforcement of the ValidatingAdmissionPolicies that are bound in a plane.

Nothing here awaits: between the decision and the write nothing changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bidplane.api.kinds import Object
from bidplane.core import cel
from bidplane.core.policies import matching, programs
from bidplane.core.policies.matching import AdmissionRequest, MatchTarget
from bidplane.core.policies.programs import CompiledPolicy, Denial, Evaluation
from bidplane.plane.admission import changes
from bidplane.plane.call import Call
from bidplane.plane.plane import Plane
from bidplane.plane.storage.feed import Item, Key
from bidplane.wire import status
from bidplane.wire.resources import Resource
from bidplane.wire.schema import versions
from bidplane.wire.selectors import label_selector

GROUP = "admissionregistration.k8s.io"
POLICIES = f"validatingadmissionpolicies.{GROUP}"
BINDINGS = f"validatingadmissionpolicybindings.{GROUP}"
# Upstream's own exceptions: a policy could otherwise forbid its own removal.
_EXEMPT = frozenset((POLICIES, BINDINGS))
_CODES = {"Forbidden": 403, "Unauthorized": 401, "RequestEntityTooLarge": 413, "Invalid": 422}
_COMPILED_LIMIT = 1024


class Misconfigured(Exception):
    """A policy or a binding that cannot be evaluated: its parameters do not exist."""


def enforce(
    plane: Plane, call: Call, operation: str, new: Object | None, old: Object | None
) -> None:
    """
    Raise the refusal of the first policy that denies the request; add the warnings of the others.
    Then the gate is asked, so that nothing is permitted that would be refused here.

    `new` and `old` are in the version of the API that `call` names.
    """
    _enforce_bound(plane, call, operation, new, old)
    changes.require_permit(plane, call, operation, new, old)


def _enforce_bound(
    plane: Plane, call: Call, operation: str, new: Object | None, old: Object | None
) -> None:
    """Enforce the policies that are bound."""
    if not call.enforced or not plane.store.count(BINDINGS) or call.resource.storage in _EXEMPT:
        return
    request = _request(plane, call, operation, new, old)
    denied: tuple[str, Denial] | None = None
    for policy_name, actions, decision in _decisions(plane, call, request):
        if "Warn" in actions:
            call.warnings.append(f"Validation failed for {policy_name}: {decision.message}")
        if "Deny" in actions and denied is None:
            denied = policy_name, decision
    if denied is not None:
        raise _refusal(call, *denied)


def _refusal(call: Call, policy_name: str, decision: Denial) -> status.StatusError:
    message = f"{policy_name} denied request: {decision.message}"
    about = call.about
    return status.refuse(
        _CODES.get(decision.reason, 422),
        decision.reason,
        f'{about.qualified} "{about.name}" is forbidden: {message}',
        # Upstream names the resource here, whatever the reason.
        about=status.About(about.plural, about.group, about.name, about.plural),
        causes=[status.Cause(message, reason="")],
    )


def _decisions(
    plane: Plane, call: Call, request: AdmissionRequest
) -> Iterator[tuple[str, tuple[str, ...], Denial]]:
    """Yield each denial with the name of its policy and binding, and the actions to take."""
    budget = cel.CostBudget()  # for all policies together
    bindings: dict[str, list[Object]] = {}
    for binding in sorted(plane.store.items(BINDINGS), key=lambda item: item.key.name):
        bindings.setdefault(binding.obj["spec"].get("policyName", ""), []).append(binding.obj)
    for name in sorted(bindings):
        item = plane.store.get(Key(POLICIES, "", name))
        if item is None:
            continue  # bound to nothing yet, as upstream
        spec, policy_name = item.obj["spec"], f"ValidatingAdmissionPolicy '{name}'"
        target = matching.match(spec.get("matchConstraints") or {}, request)
        if target is None:
            continue
        fails_open = spec.get("failurePolicy") == "Ignore"
        try:
            parameters = _parameter_kind(plane, spec)
        except Misconfigured as error:
            if not fails_open:
                message = f"failed to configure policy: {error}"
                yield policy_name, ("Deny",), Denial(message)
            continue
        for binding_obj in bindings[name]:
            binding_name = f"{policy_name} with binding '{binding_obj['metadata']['name']}'"
            binding_spec = binding_obj["spec"]
            if matching.match(binding_spec.get("matchResources") or {}, request) is None:
                continue
            try:
                params = _params(plane, parameters, binding_spec.get("paramRef"), request.namespace)
            except Misconfigured as error:
                if not fails_open:
                    message = f"failed to configure binding: {error}"
                    yield binding_name, ("Deny",), Denial(message)
                continue
            actions = tuple(binding_spec.get("validationActions") or ())
            policy = _compiled_policy(item)
            inputs = _variables(call, request, target)
            for param in params:
                variables = {**inputs, "params": param}
                for decision in Evaluation(policy, variables, budget).decisions():
                    yield binding_name, actions, decision


# Compiled once for each version of a policy.
_policies: dict[tuple[str, int], CompiledPolicy] = {}


def _compiled_policy(item: Item) -> CompiledPolicy:
    version = (item.uid, item.revision)
    if version not in _policies:
        if len(_policies) >= _COMPILED_LIMIT:
            _policies.clear()
        _policies[version] = programs.policy(item.obj["spec"])
    return _policies[version]


# The variables of a policy.


def _request(
    plane: Plane, call: Call, operation: str, new: Object | None, old: Object | None
) -> AdmissionRequest:
    resource, sub = call.resource, call.subresource
    target = _target(resource, sub)
    equivalents = (
        _target(other, sub)
        for other in plane.registry
        if other.storage == resource.storage and other.api_version != resource.api_version
    )
    namespace_item = (
        plane.store.latest(Key("namespaces", "", call.namespace)) if call.namespace else None
    )
    return AdmissionRequest(
        operation=operation,
        target=target,
        equivalents=tuple(equivalents),
        namespace=call.namespace,
        name=call.name,
        object=_without_managers(new),
        old=_without_managers(old),
        namespace_object=None if namespace_item is None else _without_managers(namespace_item.obj),
    )


def _target(resource: Resource, subresource: str) -> MatchTarget:
    return MatchTarget(
        group=resource.group,
        version=resource.version,
        resource=resource.plural,
        kind=resource.kind,
        subresource=subresource,
    )


def _without_managers(obj: Object | None) -> Object | None:
    """Return an object without its managedFields, which would be most of the work."""
    if obj is None or "managedFields" not in (obj.get("metadata") or {}):
        return obj
    meta = {key: value for key, value in obj["metadata"].items() if key != "managedFields"}
    return {**obj, "metadata": meta}


def _variables(call: Call, request: AdmissionRequest, target: MatchTarget) -> dict[str, Any]:
    """Return the CEL variables of a request, in the version that the policy matches."""
    new, old = request.object, request.old
    if target != request.target and not target.subresource:
        new, old = _in_version_of(new, target), _in_version_of(old, target)
    return {
        "object": new,
        "oldObject": old,
        "namespaceObject": request.namespace_object,
        "request": _request_object(call, request, target),
    }


def _in_version_of(obj: Object | None, target: MatchTarget) -> Object | None:
    return None if obj is None else versions.convert(obj, target.api_version)


def _request_object(call: Call, request: AdmissionRequest, target: MatchTarget) -> dict[str, Any]:
    """Return the AdmissionRequest for CEL; as in Go's JSON, empty fields are absent."""
    user, sub = call.user, request.target.subresource
    kinds = call.resource.subresources.get(sub)
    kind = (kinds.group, kinds.version, kinds.kind) if kinds is not None and sub else None

    def names_of(match: MatchTarget) -> tuple[dict[str, str], dict[str, str]]:
        group, version, name = kind or (match.group, match.version, match.kind)
        return (
            {"group": group, "version": version, "kind": name},
            {"group": match.group, "version": match.version, "resource": match.resource},
        )

    review: dict[str, Any] = {
        "operation": request.operation,
        "dryRun": call.dry_run,
        "userInfo": {
            "username": user.name,
            **({"uid": user.uid} if user.uid else {}),
            "groups": list(user.groups),
            "extra": {key: list(values) for key, values in user.extra},
        },
        "options": {},
    }
    review["kind"], review["resource"] = names_of(target)
    review["requestKind"], review["requestResource"] = names_of(request.target)
    optional = {
        "name": request.name,
        "namespace": request.namespace,
        "subResource": sub,
        "requestSubResource": sub,
    }
    return review | {field: text for field, text in optional.items() if text}


# Parameters.


def _parameter_kind(plane: Plane, spec: Object) -> Resource | None:
    """Return the kind of the parameters of a policy; raise when the plane does not serve it."""
    param_kind = spec.get("paramKind")
    if not param_kind:
        return None
    api_version, kind = param_kind.get("apiVersion", ""), param_kind.get("kind", "")
    for resource in plane.registry:
        if (resource.api_version, resource.kind) == (api_version, kind):
            return resource
    group_version = api_version if "/" in api_version else f"/{api_version}"
    raise Misconfigured(
        f"failed to find resource referenced by paramKind: '{group_version}, Kind={kind}'"
    )


def _params(
    plane: Plane, kind: Resource | None, reference: Object | None, namespace: str
) -> list[Object | None]:
    """Return the parameters that a binding names; [None] for a policy without any."""
    if kind is None or reference is None:
        return [None]
    param_namespace = ""
    if kind.namespaced:
        param_namespace = reference.get("namespace") or namespace
        if not param_namespace:
            raise Misconfigured(
                "cannot use namespaced paramRef in policy binding that matches cluster-scoped"
                " resources"
            )
    elif reference.get("namespace"):
        raise Misconfigured(
            "paramRef.namespace must not be provided for a cluster-scoped `paramKind`"
        )
    if reference.get("name"):
        item = plane.store.get(Key(kind.storage, param_namespace, reference["name"]))
        items = [] if item is None else [item]
    else:
        selector = label_selector(reference.get("selector") or {})
        items = [
            param
            for param in plane.store.items(kind.storage, param_namespace)
            if selector.matches(param.obj)
        ]
    if not items:
        if reference.get("parameterNotFoundAction") == "Deny":
            raise Misconfigured(
                "no params found for policy binding with `Deny` parameterNotFoundAction"
            )
        return []
    return [
        _without_managers(
            param.obj
            if kind.api_version == kind.storage_version
            else versions.convert(param.obj, kind.api_version)
        )
        for param in items
    ]
