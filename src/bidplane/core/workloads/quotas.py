"""
ResourceQuota: the usage of a namespace, and whether one more object would exceed it.

The same sum makes the status and refuses a write, so the two cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from bidplane.api.kinds import (
    POD,
    RESOURCE_QUOTA,
    SERVICE,
    VOLUME_CLAIM,
    Kind,
    Object,
)
from bidplane.api.objects import is_deleted, phase_of, spec_of, status_of
from bidplane.core.workloads.plan import Patch, WorkloadPlan
from bidplane.wire import quantity

_PLAIN = (
    "pods",
    "services",
    "configmaps",
    "secrets",
    "persistentvolumeclaims",
    "replicationcontrollers",
    "resourcequotas",
)
_COMPUTE = ("cpu", "memory", "ephemeral-storage")


def plan(quota: Object, objects: Mapping[Kind, Sequence[Object]]) -> WorkloadPlan:
    """Plan a quota's status; `objects` are those of its namespace, by kind."""
    hard = dict(spec_of(quota).get("hard") or {})
    used: dict[str, str] = {}
    for name in hard:
        total = Fraction(0)
        for kind, kind_objects in objects.items():
            for obj in kind_objects:
                if in_scope(quota, kind, obj):
                    total += usage(kind, obj).get(name, Fraction(0))
        used[name] = _quantity_like(total, hard[name])
    desired = {"hard": hard, "used": used}
    current = status_of(quota)
    if current.get("hard") == hard and current.get("used") == used:
        return WorkloadPlan()
    # A merge patch removes a key only if it is set to None.
    change = {
        field: {**dict.fromkeys(current.get(field) or (), None), **values}
        for field, values in desired.items()
    }
    return WorkloadPlan(status=Patch(RESOURCE_QUOTA, quota, {"status": change}, "status"))


def refusal(
    quota: Object, kind: Kind, new: Object, old: Object | None, objects: Iterable[Object]
) -> str:
    """
    Return why `new` may not be written, as upstream says it, or ""; `objects`: others of `kind`.
    """
    if not in_scope(quota, kind, new):
        return ""
    hard = spec_of(quota).get("hard") or {}
    requested = usage(kind, new)
    previous = usage(kind, old) if old is not None and in_scope(quota, kind, old) else {}
    added = {
        name: requested[name] - previous.get(name, Fraction(0))
        for name in requested
        if name in hard and requested[name] > previous.get(name, Fraction(0))
    }
    missing = [
        name
        for name in hard
        if kind == POD and _is_compute(name) and name not in requested and not is_deleted(new)
    ]
    if missing:
        return f"failed quota: {quota['metadata']['name']}: must specify {_list(missing)}"
    if not added:
        return ""
    used = dict.fromkeys(added, Fraction(0))
    for obj in objects:
        if in_scope(quota, kind, obj):
            for name, amount in usage(kind, obj).items():
                if name in used:
                    used[name] += amount
    exceeded = [name for name in added if used[name] + added[name] > quantity.parse(hard[name])]
    if not exceeded:
        return ""

    def listed(values: Mapping[str, Any]) -> str:
        return ",".join(f"{name}={values[name]}" for name in sorted(exceeded))

    return (
        f"exceeded quota: {quota['metadata']['name']},"
        f" requested: {listed({n: _quantity_like(added[n], hard[n]) for n in exceeded})},"
        f" used: {listed({n: _quantity_like(used[n], hard[n]) for n in exceeded})},"
        f" limited: {listed(hard)}"
    )


def usage(kind: Kind, obj: Object) -> dict[str, Fraction]:
    """Return how much one object counts for, by quota resource."""
    single = Fraction(1)
    name = f"{kind.plural}.{kind.group}" if kind.group else kind.plural
    amounts = {f"count/{name}": single}
    if kind == POD:
        if phase_of(obj) in ("Succeeded", "Failed"):
            return amounts
        amounts |= _pod_usage(obj)
    elif kind == SERVICE:
        type = spec_of(obj).get("type", "ClusterIP")
        ports = len(spec_of(obj).get("ports") or ())
        if type == "LoadBalancer":
            amounts["services.loadbalancers"] = single
        if type in ("NodePort", "LoadBalancer"):
            amounts["services.nodeports"] = Fraction(ports)
    elif kind == VOLUME_CLAIM:
        storage = ((spec_of(obj).get("resources") or {}).get("requests") or {}).get("storage")
        if storage is not None:
            amounts["requests.storage"] = quantity.parse(storage)
    if name in _PLAIN:
        amounts[name] = single
    return amounts


def _pod_usage(pod: Object) -> dict[str, Fraction]:
    """Return the compute resources that a pod counts for."""
    amounts: dict[str, Fraction] = {}
    for side in ("requests", "limits"):
        totals: dict[str, Fraction] = {}
        for container in spec_of(pod).get("containers") or ():
            for name, amount in ((container.get("resources") or {}).get(side) or {}).items():
                totals[name] = totals.get(name, Fraction(0)) + quantity.parse(amount)
        for container in spec_of(pod).get("initContainers") or ():
            for name, amount in ((container.get("resources") or {}).get(side) or {}).items():
                totals[name] = max(totals.get(name, Fraction(0)), quantity.parse(amount))
        for name, amount in totals.items():
            if name in _COMPUTE or side == "requests" or name.startswith("hugepages-"):
                amounts[f"{side}.{name}"] = amount
            if side == "requests" and name in _COMPUTE:
                amounts[name] = amount
    return amounts


def _is_compute(name: str) -> bool:
    """Return whether a quota resource is one that containers must specify."""
    return name in _COMPUTE or name in {
        f"{s}.{c}" for s in ("requests", "limits") for c in _COMPUTE
    }


def in_scope(quota: Object, kind: Kind, obj: Object) -> bool:
    """Return whether a quota's scopes include an object."""
    scopes = list(spec_of(quota).get("scopes") or ())
    expressions = ((spec_of(quota).get("scopeSelector") or {}).get("matchExpressions")) or ()
    if not scopes and not expressions:
        return True
    if kind != POD:
        return False
    return all(_has_scope(scope, obj) for scope in scopes) and all(
        _matches_expression(expression, obj) for expression in expressions
    )


def _matches_expression(expression: Mapping[str, Any], pod: Object) -> bool:
    """Return whether a pod matches one expression of a quota's scope selector."""
    scope, operator = expression["scopeName"], expression.get("operator", "Exists")
    if scope != "PriorityClass":
        return bool(_has_scope(scope, pod) != (operator == "DoesNotExist"))
    name, values = spec_of(pod).get("priorityClassName", ""), expression.get("values") or ()
    match operator:
        case "In":
            return bool(name in values)
        case "NotIn":
            return bool(name not in values)
        case "DoesNotExist":
            return not name
        case _:
            return bool(name)


def _has_scope(scope: str, pod: Object) -> bool:
    """Return whether a pod is in a scope."""
    terminating = spec_of(pod).get("activeDeadlineSeconds") is not None
    has_resources = any(
        (container.get("resources") or {}).get(side)
        for container in spec_of(pod).get("containers") or ()
        for side in ("requests", "limits")
    )
    return {
        "Terminating": terminating,
        "NotTerminating": not terminating,
        "BestEffort": not has_resources,
        "NotBestEffort": has_resources,
    }.get(scope, True)


def _quantity_like(amount: Fraction, like: str | int) -> str:
    """Return an amount in the suffix family of the limit it is compared with: 1Gi beside 2Gi."""
    if amount.denominator == 1:
        suffix = "Ki" if str(like)[-1:] == "i" and amount.numerator % 1024 == 0 and amount else ""
        number = amount.numerator // 1024 if suffix else amount.numerator
        return quantity.canonical(f"{number}{suffix}")
    return quantity.canonical(f"{(amount * 1000).__ceil__()}m")


def _list(names: Sequence[str]) -> str:
    return ",".join(sorted(names))
