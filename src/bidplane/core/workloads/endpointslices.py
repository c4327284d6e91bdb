"""The EndpointSlices of a Service with a selector: its pods' addresses and ports."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from bidplane.api.kinds import ENDPOINT_SLICE, SERVICE, Object
from bidplane.api.objects import (
    controller_of,
    is_deleted,
    labels_of,
    metadata_of,
    phase_of,
    status_of,
)
from bidplane.core.workloads.common import is_ready, owner_reference
from bidplane.core.workloads.plan import CreateObject, Delete, Patch, WorkloadPlan

MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
OURS = "endpointslice-controller.k8s.io"
SERVICE_NAME = "kubernetes.io/service-name"
HEADLESS = "service.kubernetes.io/headless"
_MOST_ENDPOINTS = 100  # in one slice

Ports = tuple[tuple[tuple[str, Any], ...], ...]


def plan(
    service: Object, pods: Sequence[Object], slices: Sequence[Object], nodes: Collection[str]
) -> WorkloadPlan:
    """
    Plan a Service's slices. `pods` and `slices`: of its namespace; `nodes`: names of all nodes.
    """
    plan = WorkloadPlan()
    managed = [
        s
        for s in slices
        if labels_of(s).get(SERVICE_NAME) == metadata_of(service)["name"]
        and labels_of(s).get(MANAGED_BY) == OURS
        and not is_deleted(s)
        and ((owner := controller_of(s)) is None or owner["uid"] == metadata_of(service)["uid"])
    ]
    selector = service["spec"].get("selector")
    if is_deleted(service) or not selector or service["spec"].get("type") == "ExternalName":
        return plan
    desired = _desired_endpoints(service, serving_pods(service, pods, nodes))
    free: dict[tuple[str, Ports], list[Object]] = defaultdict(list)
    for slice_ in sorted(managed, key=lambda s: str(metadata_of(s)["name"])):
        free[_slice_key(slice_)].append(slice_)
    for (family, ports), endpoints in desired.items():
        chunks = [
            endpoints[start : start + _MOST_ENDPOINTS]
            for start in range(0, max(1, len(endpoints)), _MOST_ENDPOINTS)
        ]
        for chunk in chunks:
            reusable = free.get((family, ports)) or []
            if reusable:
                existing = reusable.pop(0)
                if _is_current(existing, chunk, _labels(service)):
                    continue
                change = {"endpoints": chunk, "metadata": {"labels": _labels(service)}}
                plan.operations.append(Patch(ENDPOINT_SLICE, existing, change))
            else:
                plan.operations.append(
                    CreateObject(ENDPOINT_SLICE, _slice(service, family, ports, chunk), service)
                )
    for surplus in free.values():
        plan.operations.extend(Delete(ENDPOINT_SLICE, s, service) for s in surplus)
    return plan


def serving_pods(service: Object, pods: Sequence[Object], nodes: Collection[str]) -> list[Object]:
    """Return the pods that serve a Service with a selector."""
    publish_unready, selector = (
        service["spec"].get("publishNotReadyAddresses"),
        service["spec"]["selector"],
    )
    return [
        pod
        for pod in pods
        if selector.items() <= labels_of(pod).items()
        and _has_address(pod)
        # A pod on a node that no longer exists serves nobody.
        and (publish_unready or pod["spec"].get("nodeName") in nodes)
    ]


def _desired_endpoints(
    service: Object, pods: Iterable[Object]
) -> dict[tuple[str, Ports], list[dict[str, Any]]]:
    """Return endpoints by family and ports: a named port may have another number in another pod."""
    families = service["spec"].get("ipFamilies") or ["IPv4"]
    by_ports: dict[tuple[str, Ports], list[dict[str, Any]]] = defaultdict(list)
    for pod in sorted(pods, key=lambda p: str(metadata_of(p)["name"])):
        pod_ports = ports(service, pod)
        for family in families:
            address = next((a for a in _addresses(pod) if (":" in a) == (family == "IPv6")), None)
            if address is not None:
                by_ports[family, pod_ports].append(endpoint(service, pod, address))
    if not by_ports:  # a Service without pods has an empty slice, as upstream
        return {(family, ()): [] for family in families}
    return by_ports


def ports(service: Object, pod: Object) -> Ports:
    """Return the ports of a Service as one pod serves them."""
    entries = []
    for port in service["spec"].get("ports") or ():
        target = port.get("targetPort", port["port"])
        number = target if isinstance(target, int) else _port_number(pod, target, port)
        if number is None:
            continue
        entry = {
            "name": port.get("name", ""),
            "port": number,
            "protocol": port.get("protocol", "TCP"),
            **({"appProtocol": port["appProtocol"]} if port.get("appProtocol") else {}),
        }
        entries.append(tuple(sorted(entry.items())))
    return tuple(entries)


def _port_number(pod: Object, name: str, port: Mapping[str, Any]) -> int | None:
    """Return the number of a pod's named port; None if it has none of that name."""
    if name.isdecimal():
        return int(name)
    for container in pod["spec"].get("containers") or ():
        for candidate in container.get("ports") or ():
            same_protocol = candidate.get("protocol", "TCP") == port.get("protocol", "TCP")
            if candidate.get("name") == name and same_protocol:
                number: int = candidate["containerPort"]
                return number
    return None


def endpoint(service: Object, pod: Object, address: str) -> dict[str, Any]:
    """Return an endpoint of a slice."""
    serving, terminating = is_ready(pod), is_deleted(pod)
    ready = (serving and not terminating) or bool(service["spec"].get("publishNotReadyAddresses"))
    entry: dict[str, Any] = {
        "addresses": [address],
        "conditions": {"ready": ready, "serving": serving, "terminating": terminating},
        "targetRef": {
            "kind": "Pod",
            "namespace": metadata_of(pod)["namespace"],
            "name": metadata_of(pod)["name"],
            "uid": metadata_of(pod)["uid"],
        },
    }
    if pod["spec"].get("nodeName"):
        entry["nodeName"] = pod["spec"]["nodeName"]
    hostname, subdomain = pod["spec"].get("hostname"), pod["spec"].get("subdomain")
    if hostname and subdomain == metadata_of(service)["name"]:
        entry["hostname"] = hostname
    return entry


def _has_address(pod: Object) -> bool:
    return phase_of(pod) not in ("Succeeded", "Failed") and bool(_addresses(pod))


def _addresses(pod: Object) -> list[str]:
    status = status_of(pod)
    addresses = [entry["ip"] for entry in status.get("podIPs") or ()]
    return addresses or ([status["podIP"]] if status.get("podIP") else [])


def _labels(service: Object) -> dict[str, str]:
    headless = service["spec"].get("clusterIP") == "None"
    return {
        **labels_of(service),
        SERVICE_NAME: metadata_of(service)["name"],
        MANAGED_BY: OURS,
        **({HEADLESS: ""} if headless else {}),
    }


def _slice(
    service: Object, family: str, ports: Ports, endpoints: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "apiVersion": ENDPOINT_SLICE.api_version,
        "kind": ENDPOINT_SLICE.kind,
        "metadata": {
            "generateName": f"{metadata_of(service)['name']}-",
            "namespace": metadata_of(service)["namespace"],
            "labels": _labels(service),
            "ownerReferences": [owner_reference(SERVICE, service)],
        },
        "addressType": family,
        "ports": [dict(port) for port in ports],
        "endpoints": endpoints,
    }


def _slice_key(slice_: Object) -> tuple[str, Ports]:
    """Return the address family and ports of a slice."""
    ports = tuple(tuple(sorted(port.items())) for port in slice_.get("ports") or ())
    return slice_["addressType"], ports


def _is_current(slice_: Object, endpoints: list[dict[str, Any]], labels: Mapping[str, str]) -> bool:
    """Return whether a slice already has these endpoints and labels."""
    encode = msgspec.json.Encoder(order="deterministic").encode
    same_endpoints = sorted(map(encode, slice_.get("endpoints") or ())) == sorted(
        map(encode, endpoints)
    )
    return same_endpoints and labels_of(slice_) == labels
