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
    spec: Mapping[str, Any] = obj.get("spec") or {}
    return spec


def _status(obj: Object) -> Mapping[str, Any]:
    status: Mapping[str, Any] = obj.get("status") or {}
    return status


def _labels(labels: Mapping[str, str] | None) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted((labels or {}).items())) or NONE


def _containers(template: Mapping[str, Any]) -> tuple[str, str]:
    containers = (template.get("spec") or {}).get("containers") or ()
    names = ",".join(container.get("name", "") for container in containers)
    return names, ",".join(container.get("image", "") for container in containers)


def _first_few(values: Sequence[str]) -> str:
    """Join the first few values, and count the others."""
    if not values:
        return NONE
    remainder = f" + {len(values) - _SHOWN} more..." if len(values) > _SHOWN else ""
    return ",".join(values[:_SHOWN]) + remainder


def _modes(modes: Iterable[str] | None) -> str:
    return ",".join(_MODES.get(mode, mode) for mode in modes or ())


# core.


def endpoints(obj: Object, now: float) -> list[Any]:
    values = []
    for subset in obj.get("subsets") or ():
        addresses = [address.get("ip", "") for address in subset.get("addresses") or ()]
        ports = subset.get("ports") or ()
        values += [f"{ip}:{port.get('port')}" for port in ports for ip in addresses]
        if not ports:
            values += addresses
    return [_name(obj), _first_few(values), _age(obj, now)]


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
    owner = next((reference for reference in owners if reference.get("controller")), None)
    owner_text = NONE
    if owner is not None:
        group = owner["apiVersion"].rpartition("/")[0]
        kind = owner["kind"].lower() + (f".{group}" if group else "")
        owner_text = f"{kind}/{owner['name']}"
    return [_name(obj), owner_text, obj.get("revision", 0), _age(obj, now)]


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


def _metrics(targets: Sequence[Object], current: Sequence[Object]) -> str:
    texts = [
        _metric(target, current[index] if index < len(current) else {})
        for index, target in enumerate(targets)
    ]
    if not texts:
        return NONE
    limit = 2
    remainder = f" + {len(texts) - limit} more..." if len(texts) > limit else ""
    return ", ".join(texts[:limit]) + remainder


def _metric(metric: Object, current_metric: Object) -> str:
    kind = str(metric.get("type", ""))
    field = kind[:1].lower() + kind[1:]
    body, current = metric.get(field) or {}, (current_metric.get(field) or {}).get("current") or {}
    target = body.get("target") or {}
    head = f"{body.get('name', '')}: " if field in ("resource", "containerResource") else ""
    if "averageUtilization" in target:
        now = current.get("averageUtilization")
        current_text = "<unknown>" if now is None else f"{now}%"
        return f"{head}{current_text}/{target['averageUtilization']}%"
    average = "averageValue" in target
    target_text = target.get("averageValue" if average else "value", "<auto>")
    current_text = current.get("averageValue" if average else "value", "<unknown>")
    tail = " (avg)" if average and field in ("object", "external") else ""
    return f"{head}{current_text}/{target_text}{tail}"


# networking, discovery.


def ingress_class(obj: Object, now: float) -> list[Any]:
    spec = _spec(obj)
    parameters = spec.get("parameters")
    parameters_text = NONE
    if parameters:
        group = f".{parameters['apiGroup']}" if parameters.get("apiGroup") else ""
        parameters_text = f"{parameters.get('kind', '')}{group}/{parameters.get('name', '')}"
    return [_name(obj), spec.get("controller", ""), parameters_text, _age(obj, now)]


def ingress(obj: Object, now: float) -> list[Any]:
    spec = _spec(obj)
    hosts = [rule["host"] for rule in spec.get("rules") or () if rule.get("host")]
    load_balancers = ((_status(obj).get("loadBalancer") or {}).get("ingress")) or ()
    return [
        _name(obj),
        spec.get("ingressClassName") or NONE,
        _first_few(hosts) if hosts else "*",
        ",".join(address.get("ip") or address.get("hostname") or "" for address in load_balancers),
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
    ports = [str(port["port"]) if port.get("port") else "*" for port in obj.get("ports") or ()]
    addresses = [
        ip for endpoint in obj.get("endpoints") or () for ip in endpoint.get("addresses") or ()
    ]
    addresses_text = _first_few(addresses) if addresses else UNSET
    ports_text = _first_few(ports) if ports else UNSET
    return [_name(obj), obj.get("addressType", ""), ports_text, addresses_text, _age(obj, now)]


# storage.


def csi_driver(obj: Object, now: float) -> list[Any]:
    spec = _spec(obj)
    tokens = [request.get("audience", "") for request in spec.get("tokenRequests") or ()]
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
    reference = spec.get("paramRef")
    reference_text = UNSET
    if reference and reference.get("name"):
        space = f"{reference['namespace']}/" if reference.get("namespace") else "*/"
        reference_text = f"{space}{reference['name']}"
    elif reference:
        reference_text = selector_text(reference.get("selector")) or UNSET
    return [_name(obj), spec.get("policyName", ""), reference_text, _age(obj, now)]


def api_service(obj: Object, now: float) -> list[Any]:
    service = _spec(obj).get("service")
    conditions = _status(obj).get("conditions") or ()
    available = next(
        (condition for condition in conditions if condition.get("type") == "Available"), None
    )
    availability = "Unknown"
    if available is not None:
        availability = available["status"]
        if availability != "True":
            availability = f"{availability} ({available.get('reason', '')})"
    service_text = f"{service['namespace']}/{service['name']}" if service else "Local"
    return [_name(obj), service_text, availability, _age(obj, now)]


def flow_schema(obj: Object, now: float) -> list[Any]:
    spec = _spec(obj)
    conditions = _status(obj).get("conditions") or ()
    dangling = next(
        (condition["status"] for condition in conditions if condition.get("type") == "Dangling"),
        "?",
    )
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
    queue_cells = [queues.get(field, 0) for field in fields] if queues else [NONE] * 3
    return [
        _name(obj),
        spec.get("type", ""),
        NONE if shares is None else shares,
        *queue_cells,
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
