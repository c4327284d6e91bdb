"""Cells of the kinds that few people list: volumes, autoscalers, policies, webhooks, slices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from bidplane.wire.selectors import selector_text
from bidplane.wire.table.human import age

Object = Mapping[str, Any]
NONE, UNSET = "<none>", "<unset>"
_MODES = {
    "ReadWriteOnce": "RWO",
    "ReadOnlyMany": "ROX",
    "ReadWriteMany": "RWX",
    "ReadWriteOncePod": "RWOP",
}
_SHOWN = 3  # addresses, before the rest is counted


def _name(obj: Object) -> str:
    return str(obj["metadata"]["name"])


def _age(obj: Object, now: float) -> str:
    return age(obj["metadata"].get("creationTimestamp"), now)


def _spec(obj: Object) -> Mapping[str, Any]:
    found: Mapping[str, Any] = obj.get("spec") or {}
    return found


def _status(obj: Object) -> Mapping[str, Any]:
    found: Mapping[str, Any] = obj.get("status") or {}
    return found


def _labels(labels: Mapping[str, str] | None) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted((labels or {}).items())) or NONE


def _containers(template: Mapping[str, Any]) -> tuple[str, str]:
    found = (template.get("spec") or {}).get("containers") or ()
    names = ",".join(one.get("name", "") for one in found)
    return names, ",".join(one.get("image", "") for one in found)


def _some(values: Sequence[str]) -> str:
    if not values:
        return NONE
    more = f" + {len(values) - _SHOWN} more..." if len(values) > _SHOWN else ""
    return ",".join(values[:_SHOWN]) + more


def _modes(modes: Iterable[str] | None) -> str:
    return ",".join(_MODES.get(mode, mode) for mode in modes or ())


# core.


def endpoints(obj: Object, now: float) -> list[Any]:
    found = []
    for subset in obj.get("subsets") or ():
        addresses = [one.get("ip", "") for one in subset.get("addresses") or ()]
        ports = subset.get("ports") or ()
        found += [f"{ip}:{port.get('port')}" for port in ports for ip in addresses]
        if not ports:
            found += addresses
    return [_name(obj), _some(found), _age(obj, now)]


def volume_claim(obj: Object, now: float) -> list[Any]:
    spec, status = _spec(obj), _status(obj)
    going = "deletionTimestamp" in obj["metadata"]
    bound = bool(spec.get("volumeName"))
    return [
        _name(obj),
        "Terminating" if going else status.get("phase", ""),
        spec.get("volumeName", ""),
        (status.get("capacity") or {}).get("storage", "") if bound else "",
        _modes(status.get("accessModes")) if bound else "",
        spec.get("storageClassName", ""),
        spec.get("volumeAttributesClassName") or UNSET,
        _age(obj, now),
        spec.get("volumeMode") or UNSET,
    ]


def volume(obj: Object, now: float) -> list[Any]:
    spec, status = _spec(obj), _status(obj)
    claim = spec.get("claimRef")
    going = "deletionTimestamp" in obj["metadata"]
    return [
        _name(obj),
        (spec.get("capacity") or {}).get("storage", ""),
        _modes(spec.get("accessModes")),
        spec.get("persistentVolumeReclaimPolicy", ""),
        "Terminating" if going else status.get("phase", ""),
        f"{claim.get('namespace', '')}/{claim.get('name', '')}" if claim else "",
        spec.get("storageClassName", ""),
        spec.get("volumeAttributesClassName") or UNSET,
        status.get("reason", ""),
        _age(obj, now),
        spec.get("volumeMode") or UNSET,
    ]


def pod_template(obj: Object, now: float) -> list[Any]:
    template = obj.get("template") or {}
    return [
        _name(obj),
        *_containers(template),
        _labels((template.get("metadata") or {}).get("labels")),
    ]


def replication_controller(obj: Object, now: float) -> list[Any]:
    spec, status = _spec(obj), _status(obj)
    return [
        _name(obj),
        spec.get("replicas", 0),
        status.get("replicas", 0),
        status.get("readyReplicas", 0),
        _age(obj, now),
        *_containers(spec.get("template") or {}),
        _labels(spec.get("selector")),
    ]


# apps, autoscaling.


def controller_revision(obj: Object, now: float) -> list[Any]:
    owners = obj["metadata"].get("ownerReferences") or ()
    owner = next((one for one in owners if one.get("controller")), None)
    named = NONE
    if owner is not None:
        group = owner["apiVersion"].rpartition("/")[0]
        kind = owner["kind"].lower() + (f".{group}" if group else "")
        named = f"{kind}/{owner['name']}"
    return [_name(obj), named, obj.get("revision", 0), _age(obj, now)]


def daemon_set(obj: Object, now: float) -> list[Any]:
    spec, status = _spec(obj), _status(obj)
    template = spec.get("template") or {}
    return [
        _name(obj),
        status.get("desiredNumberScheduled", 0),
        status.get("currentNumberScheduled", 0),
        status.get("numberReady", 0),
        status.get("updatedNumberScheduled", 0),
        status.get("numberAvailable", 0),
        _labels((template.get("spec") or {}).get("nodeSelector")),
        _age(obj, now),
        *_containers(template),
        selector_text(spec.get("selector")) or NONE,
    ]


def autoscaler(obj: Object, now: float) -> list[Any]:
    spec, status = _spec(obj), _status(obj)
    target = spec.get("scaleTargetRef") or {}
    least = spec.get("minReplicas")
    return [
        _name(obj),
        f"{target.get('kind', '')}/{target.get('name', '')}",
        _metrics(spec.get("metrics") or (), status.get("currentMetrics") or ()),
        UNSET if least is None else str(least),
        spec.get("maxReplicas", 0),
        status.get("currentReplicas", 0),
        _age(obj, now),
    ]


def _metrics(wanted: Sequence[Object], seen: Sequence[Object]) -> str:
    shown = [_metric(one, seen[at] if at < len(seen) else {}) for at, one in enumerate(wanted)]
    if not shown:
        return NONE
    most = 2
    more = f" + {len(shown) - most} more..." if len(shown) > most else ""
    return ", ".join(shown[:most]) + more


def _metric(wanted: Object, seen: Object) -> str:
    kind = str(wanted.get("type", ""))
    field = kind[:1].lower() + kind[1:]
    body, current = wanted.get(field) or {}, (seen.get(field) or {}).get("current") or {}
    target = body.get("target") or {}
    head = f"{body.get('name', '')}: " if field in ("resource", "containerResource") else ""
    if "averageUtilization" in target:
        now = current.get("averageUtilization")
        told = "<unknown>" if now is None else f"{now}%"
        return f"{head}{told}/{target['averageUtilization']}%"
    average = "averageValue" in target
    asked = target.get("averageValue" if average else "value", "<auto>")
    told = current.get("averageValue" if average else "value", "<unknown>")
    tail = " (avg)" if average and field in ("object", "external") else ""
    return f"{head}{told}/{asked}{tail}"


# networking, discovery.


def ingress_class(obj: Object, now: float) -> list[Any]:
    spec = _spec(obj)
    given = spec.get("parameters")
    named = NONE
    if given:
        group = f".{given['apiGroup']}" if given.get("apiGroup") else ""
        named = f"{given.get('kind', '')}{group}/{given.get('name', '')}"
    return [_name(obj), spec.get("controller", ""), named, _age(obj, now)]


def ingress(obj: Object, now: float) -> list[Any]:
    spec = _spec(obj)
    hosts = [rule["host"] for rule in spec.get("rules") or () if rule.get("host")]
    reached = ((_status(obj).get("loadBalancer") or {}).get("ingress")) or ()
    return [
        _name(obj),
        spec.get("ingressClassName") or NONE,
        _some(hosts) if hosts else "*",
        ",".join(one.get("ip") or one.get("hostname") or "" for one in reached),
        "80, 443" if spec.get("tls") else "80",
        _age(obj, now),
    ]


def ip_address(obj: Object, now: float) -> list[Any]:
    parent = _spec(obj).get("parentRef") or {}
    parts = (parent.get("resource"), parent.get("namespace"), parent.get("name"))
    return [_name(obj), "/".join(part for part in parts if part)]


def network_policy(obj: Object, now: float) -> list[Any]:
    return [_name(obj), selector_text(_spec(obj).get("podSelector")) or NONE, _age(obj, now)]


def service_cidr(obj: Object, now: float) -> list[Any]:
    return [_name(obj), ",".join(_spec(obj).get("cidrs") or ()), _age(obj, now)]


def endpoint_slice(obj: Object, now: float) -> list[Any]:
    ports = [str(one["port"]) if one.get("port") else "*" for one in obj.get("ports") or ()]
    found = [ip for one in obj.get("endpoints") or () for ip in one.get("addresses") or ()]
    shown = _some(found) if found else UNSET
    named = _some(ports) if ports else UNSET
    return [_name(obj), obj.get("addressType", ""), named, shown, _age(obj, now)]


# storage.


def csi_driver(obj: Object, now: float) -> list[Any]:
    spec = _spec(obj)
    tokens = [one.get("audience", "") for one in spec.get("tokenRequests") or ()]
    return [
        _name(obj),
        bool(spec.get("attachRequired", True)),
        bool(spec.get("podInfoOnMount")),
        bool(spec.get("storageCapacity")),
        ",".join(tokens) if tokens else UNSET,
        bool(spec.get("requiresRepublish")),
        ",".join(spec.get("volumeLifecycleModes") or ()) or NONE,
        _age(obj, now),
    ]


def csi_node(obj: Object, now: float) -> list[Any]:
    return [_name(obj), len(_spec(obj).get("drivers") or ()), _age(obj, now)]


def storage_class(obj: Object, now: float) -> list[Any]:
    return [
        _name(obj),
        obj.get("provisioner", ""),
        obj.get("reclaimPolicy", "Delete"),
        obj.get("volumeBindingMode", "Immediate"),
        bool(obj.get("allowVolumeExpansion")),
        _age(obj, now),
    ]


def volume_attachment(obj: Object, now: float) -> list[Any]:
    spec = _spec(obj)
    return [
        _name(obj),
        spec.get("attacher", ""),
        (spec.get("source") or {}).get("persistentVolumeName", ""),
        spec.get("nodeName", ""),
        bool(_status(obj).get("attached")),
        _age(obj, now),
    ]


def attributes_class(obj: Object, now: float) -> list[Any]:
    return [_name(obj), obj.get("driverName", ""), _age(obj, now)]


# admissionregistration, apiregistration, flowcontrol, and the rest.


def webhooks(obj: Object, now: float) -> list[Any]:
    return [_name(obj), len(obj.get("webhooks") or ()), _age(obj, now)]


def _policy(field: str) -> Callable[[Object, float], list[Any]]:
    def row(obj: Object, now: float) -> list[Any]:
        spec = _spec(obj)
        kind = spec.get("paramKind")
        named = f"{kind.get('apiVersion', '')}/{kind.get('kind', '')}" if kind else UNSET
        return [_name(obj), len(spec.get(field) or ()), named, _age(obj, now)]

    return row


def policy_binding(obj: Object, now: float) -> list[Any]:
    spec = _spec(obj)
    given = spec.get("paramRef")
    named = UNSET
    if given and given.get("name"):
        space = f"{given['namespace']}/" if given.get("namespace") else "*/"
        named = f"{space}{given['name']}"
    elif given:
        named = selector_text(given.get("selector")) or UNSET
    return [_name(obj), spec.get("policyName", ""), named, _age(obj, now)]


def api_service(obj: Object, now: float) -> list[Any]:
    service = _spec(obj).get("service")
    conditions = _status(obj).get("conditions") or ()
    found = next((one for one in conditions if one.get("type") == "Available"), None)
    told = "Unknown"
    if found is not None:
        told = found["status"]
        if told != "True":
            told = f"{told} ({found.get('reason', '')})"
    named = f"{service['namespace']}/{service['name']}" if service else "Local"
    return [_name(obj), named, told, _age(obj, now)]


def flow_schema(obj: Object, now: float) -> list[Any]:
    spec = _spec(obj)
    conditions = _status(obj).get("conditions") or ()
    dangling = next((one["status"] for one in conditions if one.get("type") == "Dangling"), "?")
    return [
        _name(obj),
        (spec.get("priorityLevelConfiguration") or {}).get("name", ""),
        spec.get("matchingPrecedence", 0),
        (spec.get("distinguisherMethod") or {}).get("type") or NONE,
        _age(obj, now),
        dangling,
    ]


def priority_level(obj: Object, now: float) -> list[Any]:
    spec = _spec(obj)
    limited = spec.get("limited") or {}
    queues = (limited.get("limitResponse") or {}).get("queuing")
    exempt = spec.get("exempt") or {}
    shares: Any = limited.get("nominalConcurrencyShares", exempt.get("nominalConcurrencyShares"))
    fields = ("queues", "handSize", "queueLengthLimit")
    shown = [queues.get(field, 0) for field in fields] if queues else [NONE] * 3
    return [
        _name(obj),
        spec.get("type", ""),
        NONE if shares is None else shares,
        *shown,
        _age(obj, now),
    ]


def runtime_class(obj: Object, now: float) -> list[Any]:
    return [_name(obj), obj.get("handler", ""), _age(obj, now)]


def trust_bundle(obj: Object, now: float) -> list[Any]:
    return [_name(obj), _spec(obj).get("signerName") or NONE]


def device_taint_rule(obj: Object, now: float) -> list[Any]:
    taint = _spec(obj).get("taint") or {}
    return [
        _name(obj),
        taint.get("key", ""),
        taint.get("value", ""),
        taint.get("effect", ""),
        taint.get("timeAdded", ""),
        _age(obj, now),
    ]


ROWS: Mapping[str, Callable[[Object, float], list[Any]]] = {
    "endpoints": endpoints,
    "persistentvolumeclaims": volume_claim,
    "persistentvolumes": volume,
    "podtemplates": pod_template,
    "replicationcontrollers": replication_controller,
    "apiservices.apiregistration.k8s.io": api_service,
    "controllerrevisions.apps": controller_revision,
    "daemonsets.apps": daemon_set,
    "horizontalpodautoscalers.autoscaling": autoscaler,
    "clustertrustbundles.certificates.k8s.io": trust_bundle,
    "ingressclasses.networking.k8s.io": ingress_class,
    "ingresses.networking.k8s.io": ingress,
    "ipaddresses.networking.k8s.io": ip_address,
    "networkpolicies.networking.k8s.io": network_policy,
    "servicecidrs.networking.k8s.io": service_cidr,
    "csidrivers.storage.k8s.io": csi_driver,
    "csinodes.storage.k8s.io": csi_node,
    "storageclasses.storage.k8s.io": storage_class,
    "volumeattachments.storage.k8s.io": volume_attachment,
    "volumeattributesclasses.storage.k8s.io": attributes_class,
    "mutatingadmissionpolicies.admissionregistration.k8s.io": _policy("mutations"),
    "mutatingadmissionpolicybindings.admissionregistration.k8s.io": policy_binding,
    "validatingadmissionpolicies.admissionregistration.k8s.io": _policy("validations"),
    "validatingadmissionpolicybindings.admissionregistration.k8s.io": policy_binding,
    "mutatingwebhookconfigurations.admissionregistration.k8s.io": webhooks,
    "validatingwebhookconfigurations.admissionregistration.k8s.io": webhooks,
    "runtimeclasses.node.k8s.io": runtime_class,
    "endpointslices.discovery.k8s.io": endpoint_slice,
    "devicetaintrules.resource.k8s.io": device_taint_rule,
    "flowschemas.flowcontrol.apiserver.k8s.io": flow_schema,
    "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io": priority_level,
}
