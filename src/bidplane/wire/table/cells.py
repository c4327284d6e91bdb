"""Cells of built-in kinds, in the order of their recorded columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from bidplane.wire.table import more, pods, rare
from bidplane.wire.table.human import UNKNOWN, age

Object = Mapping[str, Any]
NONE = "<none>"


def compact(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _age(obj: Object, now: float) -> str:
    return age(obj["metadata"].get("creationTimestamp"), now)


def _name(obj: Object) -> str:
    return str(obj["metadata"]["name"])


def _selector(selector: Mapping[str, Any] | None) -> str:
    """Return a label selector in one line."""
    if not selector:
        return NONE
    terms = [f"{key}={value}" for key, value in sorted((selector.get("matchLabels") or {}).items())]
    for rule in selector.get("matchExpressions") or ():
        values = ",".join(rule.get("values") or ())
        terms.append(f"{rule['key']} {rule['operator'].lower()} ({values})")
    return ",".join(terms) or NONE


def _containers(template: Mapping[str, Any]) -> tuple[str, str]:
    containers = (template.get("spec") or {}).get("containers") or ()
    names = ",".join(container.get("name", "") for container in containers)
    return names, ",".join(container.get("image", "") for container in containers)


def _namespace(obj: Object, now: float) -> list[Any]:
    return [_name(obj), (obj.get("status") or {}).get("phase", ""), _age(obj, now)]


def _config_map(obj: Object, now: float) -> list[Any]:
    count = len(obj.get("data") or {}) + len(obj.get("binaryData") or {})
    return [_name(obj), count, _age(obj, now)]


def _secret(obj: Object, now: float) -> list[Any]:
    return [_name(obj), obj.get("type", ""), len(obj.get("data") or {}), _age(obj, now)]


def _node(obj: Object, now: float) -> list[Any]:
    status, spec = obj.get("status") or {}, obj.get("spec") or {}
    ready = next((c for c in status.get("conditions") or () if c.get("type") == "Ready"), None)
    states = ["Unknown" if ready is None else "Ready" if ready["status"] == "True" else "NotReady"]
    if spec.get("unschedulable"):
        states.append("SchedulingDisabled")
    roles = set()
    for key, value in (obj["metadata"].get("labels") or {}).items():
        if key.startswith("node-role.kubernetes.io/"):
            roles.add(key.partition("/")[2])
        elif key == "kubernetes.io/role" and value:
            roles.add(value)
    info, addresses = status.get("nodeInfo") or {}, status.get("addresses") or ()

    def address(kind: str) -> str:
        return next((a["address"] for a in addresses if a.get("type") == kind), NONE)

    kernel = info.get("kernelVersion") or UNKNOWN
    if info.get("architecture"):
        kernel += f" ({info['architecture']})"
    return [
        _name(obj),
        ",".join(states),
        ",".join(sorted(filter(None, roles))) or NONE,
        _age(obj, now),
        info.get("kubeletVersion", ""),
        address("InternalIP"),
        address("ExternalIP"),
        info.get("osImage") or UNKNOWN,
        kernel,
        info.get("containerRuntimeVersion") or UNKNOWN,
    ]


def _event(obj: Object, now: float) -> list[Any]:
    series = obj.get("series") or {}
    first = obj.get("firstTimestamp") or obj.get("eventTime")
    last = obj.get("lastTimestamp") or series.get("lastObservedTime") or first
    about = obj.get("involvedObject") or {}
    source = obj.get("source") or {}
    component = source.get("component") or obj.get("reportingComponent", "")
    host = source.get("host") or ""
    target = about.get("kind", "").lower()
    if about.get("name"):
        target += f"/{about['name']}"
    return [
        age(last, now),
        obj.get("type", ""),
        obj.get("reason", ""),
        target,
        about.get("fieldPath", ""),
        f"{component}, {host}" if host else component,
        obj.get("message", "").strip(),
        age(first, now),
        str(series.get("count") or obj.get("count") or 1),
        _name(obj),
    ]


def _service(obj: Object, now: float) -> list[Any]:
    spec = obj.get("spec") or {}
    ingress = ((obj.get("status") or {}).get("loadBalancer") or {}).get("ingress") or ()
    outside = [
        *(spec.get("externalIPs") or ()),
        *(i.get("ip") or i.get("hostname") for i in ingress),
    ]
    kind = spec.get("type", "ClusterIP")
    if kind == "ExternalName":
        outside = [spec.get("externalName")]
    elif kind == "LoadBalancer" and not outside:
        outside = ["<pending>"]
    ports = []
    for port in spec.get("ports") or ():
        node = f":{port['nodePort']}" if port.get("nodePort") else ""
        ports.append(f"{port['port']}{node}/{port.get('protocol', 'TCP')}")
    selector = ",".join(f"{k}={v}" for k, v in sorted((spec.get("selector") or {}).items()))
    return [
        _name(obj),
        kind,
        spec.get("clusterIP") or NONE,
        ",".join(filter(None, outside)) or NONE,
        ",".join(ports) or NONE,
        _age(obj, now),
        selector or NONE,
    ]


def _deployment(obj: Object, now: float) -> list[Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    names, images = _containers(spec.get("template") or {})
    return [
        _name(obj),
        f"{status.get('readyReplicas', 0)}/{spec.get('replicas', 0)}",
        status.get("updatedReplicas", 0),
        status.get("availableReplicas", 0),
        _age(obj, now),
        names,
        images,
        _selector(spec.get("selector")),
    ]


def _replica_set(obj: Object, now: float) -> list[Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    names, images = _containers(spec.get("template") or {})
    return [
        _name(obj),
        spec.get("replicas", 0),
        status.get("replicas", 0),
        status.get("readyReplicas", 0),
        _age(obj, now),
        names,
        images,
        _selector(spec.get("selector")),
    ]


def _lease(obj: Object, now: float) -> list[Any]:
    return [_name(obj), (obj.get("spec") or {}).get("holderIdentity", ""), _age(obj, now)]


def _crd(obj: Object, now: float) -> list[Any]:
    spec, names = obj.get("spec") or {}, (obj.get("spec") or {}).get("names") or {}
    conditions = (obj.get("status") or {}).get("conditions") or ()
    established = any(c["type"] == "Established" and c["status"] == "True" for c in conditions)
    served = [
        version["name"] + ("(storage)" if version.get("storage") else "")
        for version in spec.get("versions") or ()
        if version.get("served")
    ]
    return [
        _name(obj),
        spec.get("scope", ""),
        ",".join(served),
        obj["metadata"].get("creationTimestamp"),
        spec.get("group", ""),
        names.get("kind", ""),
        ",".join(names.get("shortNames") or ()),
        established,
    ]


def _resource_claim(obj: Object, now: float) -> list[Any]:
    status = obj.get("status") or {}
    states = []
    if "deletionTimestamp" in obj["metadata"]:
        states.append("deleted")
    if not status.get("allocation"):
        if "deletionTimestamp" not in obj["metadata"]:
            states.append("pending")
    else:
        states.append("allocated")
        if status.get("reservedFor"):
            states.append("reserved")
    return [_name(obj), ",".join(states), _age(obj, now)]


def _resource_slice(obj: Object, now: float) -> list[Any]:
    spec = obj.get("spec") or {}
    pool = (spec.get("pool") or {}).get("name", "")
    node = spec.get("nodeName") or ("<all>" if spec.get("allNodes") else NONE)
    return [_name(obj), node, spec.get("driver", ""), pool, _age(obj, now)]


Printer = Callable[[Object, float], list[Any]]
ROWS: Mapping[str, Printer] = {
    **rare.ROWS,
    "pods": pods.row,
    "namespaces": _namespace,
    "nodes": _node,
    "configmaps": _config_map,
    "secrets": _secret,
    "events": _event,
    "services": _service,
    "deployments.apps": _deployment,
    "replicasets.apps": _replica_set,
    "leases.coordination.k8s.io": _lease,
    "customresourcedefinitions.apiextensions.k8s.io": _crd,
    "resourceclaims.resource.k8s.io": _resource_claim,
    "resourceslices.resource.k8s.io": _resource_slice,
    "rolebindings.rbac.authorization.k8s.io": more.binding,
    "clusterrolebindings.rbac.authorization.k8s.io": more.binding,
    "statefulsets.apps": more.stateful_set,
    "jobs.batch": more.job,
    "cronjobs.batch": more.cron_job,
    "poddisruptionbudgets.policy": more.disruption_budget,
    "priorityclasses.scheduling.k8s.io": more.priority_class,
    "resourcequotas": more.quota,
    "certificatesigningrequests.certificates.k8s.io": more.certificate_request,
}
