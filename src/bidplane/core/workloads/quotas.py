"""
ResourceQuota: what a namespace uses, and what it would if one object more were there.

The same sum tells the status and refuses a write, so the two cannot disagree.
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
from bidplane.core.workloads.common import (
    is_going,
    phase_of,
    status_of,
)
from bidplane.core.workloads.plan import Patch, Plan
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


def plan(quota: Object, objects: Mapping[Kind, Sequence[Object]]) -> Plan:
    """`objects` are those of its namespace, of every kind that `kinds` names."""
    hard = dict(quota["spec"].get("hard") or {})
    used: dict[str, str] = {}
    for name in hard:
        total = Fraction(0)
        for kind, found in objects.items():
            for obj in found:
                if in_scope(quota, kind, obj):
                    total += usage(kind, obj).get(name, Fraction(0))
        used[name] = _written(total, hard[name])
    wanted = {"hard": hard, "used": used}
    known = status_of(quota)
    if known.get("hard") == hard and known.get("used") == used:
        return Plan()
    # Maps are merged: what is no longer limited must be said.
    change = {
        field: {**dict.fromkeys(known.get(field) or (), None), **values}
        for field, values in wanted.items()
    }
    return Plan(status=Patch(RESOURCE_QUOTA, quota, {"status": change}, "status"))


def refusal(
    quota: Object, kind: Kind, new: Object, old: Object | None, objects: Iterable[Object]
) -> str:
    """Why `new` may not be written, in upstream's words; `objects` are the others of `kind`."""
    if not in_scope(quota, kind, new):
        return ""
    hard = quota["spec"].get("hard") or {}
    asked = usage(kind, new)
    before = usage(kind, old) if old is not None and in_scope(quota, kind, old) else {}
    more = {
        name: asked[name] - before.get(name, Fraction(0))
        for name in asked
        if name in hard and asked[name] > before.get(name, Fraction(0))
    }
    missing = [
        name
        for name in hard
        if kind == POD and _compute(name) and name not in asked and not is_going(new)
    ]
    if missing:
        return f"failed quota: {quota['metadata']['name']}: must specify {_list(missing)}"
    if not more:
        return ""
    used = dict.fromkeys(more, Fraction(0))
    for obj in objects:
        if in_scope(quota, kind, obj):
            for name, amount in usage(kind, obj).items():
                if name in used:
                    used[name] += amount
    over = [name for name in more if used[name] + more[name] > quantity.parse(hard[name])]
    if not over:
        return ""

    def said(values: Mapping[str, Any]) -> str:
        return ",".join(f"{name}={values[name]}" for name in sorted(over))

    return (
        f"exceeded quota: {quota['metadata']['name']},"
        f" requested: {said({n: _written(more[n], hard[n]) for n in over})},"
        f" used: {said({n: _written(used[n], hard[n]) for n in over})},"
        f" limited: {said(hard)}"
    )


def usage(kind: Kind, obj: Object) -> dict[str, Fraction]:
    """What one object counts for."""
    one = Fraction(1)
    name = f"{kind.plural}.{kind.group}" if kind.group else kind.plural
    found = {f"count/{name}": one}
    if kind == POD:
        if phase_of(obj) in ("Succeeded", "Failed"):
            return found
        found |= _pod(obj)
    elif kind == SERVICE:
        type = obj["spec"].get("type", "ClusterIP")
        ports = len(obj["spec"].get("ports") or ())
        if type == "LoadBalancer":
            found["services.loadbalancers"] = one
        if type in ("NodePort", "LoadBalancer"):
            found["services.nodeports"] = Fraction(ports)
    elif kind == VOLUME_CLAIM:
        wanted = ((obj["spec"].get("resources") or {}).get("requests") or {}).get("storage")
        if wanted is not None:
            found["requests.storage"] = quantity.parse(wanted)
    if name in _PLAIN:
        found[name] = one
    return found


def _pod(pod: Object) -> dict[str, Fraction]:
    found: dict[str, Fraction] = {}
    for side in ("requests", "limits"):
        totals: dict[str, Fraction] = {}
        for container in pod["spec"].get("containers") or ():
            for name, amount in ((container.get("resources") or {}).get(side) or {}).items():
                totals[name] = totals.get(name, Fraction(0)) + quantity.parse(amount)
        for container in pod["spec"].get("initContainers") or ():
            for name, amount in ((container.get("resources") or {}).get(side) or {}).items():
                totals[name] = max(totals.get(name, Fraction(0)), quantity.parse(amount))
        for name, amount in totals.items():
            if name in _COMPUTE or side == "requests" or name.startswith("hugepages-"):
                found[f"{side}.{name}"] = amount
            if side == "requests" and name in _COMPUTE:
                found[name] = amount
    return found


def _compute(name: str) -> bool:
    return name in _COMPUTE or name in {
        f"{s}.{c}" for s in ("requests", "limits") for c in _COMPUTE
    }


def in_scope(quota: Object, kind: Kind, obj: Object) -> bool:
    scopes = list(quota["spec"].get("scopes") or ())
    chosen = ((quota["spec"].get("scopeSelector") or {}).get("matchExpressions")) or ()
    if not scopes and not chosen:
        return True
    if kind != POD:
        return False
    return all(_has_scope(scope, obj) for scope in scopes) and all(
        _chosen(expression, obj) for expression in chosen
    )


def _chosen(expression: Mapping[str, Any], pod: Object) -> bool:
    scope, operator = expression["scopeName"], expression.get("operator", "Exists")
    if scope != "PriorityClass":
        return bool(_has_scope(scope, pod) != (operator == "DoesNotExist"))
    name, values = pod["spec"].get("priorityClassName", ""), expression.get("values") or ()
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
    terminating = pod["spec"].get("activeDeadlineSeconds") is not None
    effort = any(
        (container.get("resources") or {}).get(side)
        for container in pod["spec"].get("containers") or ()
        for side in ("requests", "limits")
    )
    return {
        "Terminating": terminating,
        "NotTerminating": not terminating,
        "BestEffort": not effort,
        "NotBestEffort": effort,
    }.get(scope, True)


def _written(amount: Fraction, like: str | int) -> str:
    """In the family of what it is compared with: 1Gi beside 2Gi."""
    if amount.denominator == 1:
        suffix = "Ki" if str(like)[-1:] == "i" and amount.numerator % 1024 == 0 and amount else ""
        number = amount.numerator // 1024 if suffix else amount.numerator
        return quantity.canonical(f"{number}{suffix}")
    return quantity.canonical(f"{(amount * 1000).__ceil__()}m")


def _list(names: Sequence[str]) -> str:
    return ",".join(sorted(names))
