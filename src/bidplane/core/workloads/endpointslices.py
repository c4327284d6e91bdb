"""The EndpointSlices of a Service with a selector: which pods answer for it, and where."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from bidplane.api.kinds import ENDPOINT_SLICE, SERVICE, Object
from bidplane.core.workloads.common import (
    controller_of,
    is_going,
    is_ready,
    labels_of,
    meta,
    owner_reference,
    phase_of,
    status_of,
)
from bidplane.core.workloads.plan import Create, Delete, Patch, Plan

MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
OURS = "endpointslice-controller.k8s.io"
SERVICE_NAME = "kubernetes.io/service-name"
HEADLESS = "service.kubernetes.io/headless"
_MOST_ENDPOINTS = 100  # in one slice

Ports = tuple[tuple[tuple[str, Any], ...], ...]


def plan(
    service: Object, pods: Sequence[Object], slices: Sequence[Object], nodes: Collection[str]
) -> Plan:
    """`pods` and `slices` are those of its namespace; `nodes` the names of those there are."""
    plan = Plan()
    ours = [
        s
        for s in slices
        if labels_of(s).get(SERVICE_NAME) == meta(service)["name"]
        and labels_of(s).get(MANAGED_BY) == OURS
        and not is_going(s)
        and ((owner := controller_of(s)) is None or owner["uid"] == meta(service)["uid"])
    ]
    selector = service["spec"].get("selector")
    if is_going(service) or not selector or service["spec"].get("type") == "ExternalName":
        return plan
    wanted = _wanted(service, answering(service, pods, nodes))
    free: dict[tuple[str, Ports], list[Object]] = defaultdict(list)
    for found in sorted(ours, key=lambda s: str(meta(s)["name"])):
        free[_key(found)].append(found)
    for (family, ports), endpoints in wanted.items():
        chunks = [
            endpoints[at : at + _MOST_ENDPOINTS]
            for at in range(0, max(1, len(endpoints)), _MOST_ENDPOINTS)
        ]
        for chunk in chunks:
            known = free.get((family, ports)) or []
            if known:
                slice_ = known.pop(0)
                if _same(slice_, chunk, _labels(service)):
                    continue
                change = {"endpoints": chunk, "metadata": {"labels": _labels(service)}}
                plan.operations.append(Patch(ENDPOINT_SLICE, slice_, change))
            else:
                plan.operations.append(
                    Create(ENDPOINT_SLICE, _slice(service, family, ports, chunk), service)
                )
    for left in free.values():
        plan.operations.extend(Delete(ENDPOINT_SLICE, s, service) for s in left)
    return plan


def answering(service: Object, pods: Sequence[Object], nodes: Collection[str]) -> list[Object]:
    """The pods a Service with a selector speaks for."""
    early, selector = service["spec"].get("publishNotReadyAddresses"), service["spec"]["selector"]
    return [
        pod
        for pod in pods
        if selector.items() <= labels_of(pod).items()
        and _has_address(pod)
        # A pod on a node that is gone answers nobody.
        and (early or pod["spec"].get("nodeName") in nodes)
    ]


def _wanted(
    service: Object, pods: Iterable[Object]
) -> dict[tuple[str, Ports], list[dict[str, Any]]]:
    """Endpoints by what they listen on: a named port may be another number in another pod."""
    families = service["spec"].get("ipFamilies") or ["IPv4"]
    found: dict[tuple[str, Ports], list[dict[str, Any]]] = defaultdict(list)
    for pod in sorted(pods, key=lambda p: str(meta(p)["name"])):
        listens = ports(service, pod)
        for family in families:
            address = next((a for a in _addresses(pod) if (":" in a) == (family == "IPv6")), None)
            if address is not None:
                found[family, listens].append(endpoint(service, pod, address))
    if not found:  # a Service nobody answers for has an empty slice, as upstream
        return {(family, ()): [] for family in families}
    return found


def ports(service: Object, pod: Object) -> Ports:
    found = []
    for port in service["spec"].get("ports") or ():
        target = port.get("targetPort", port["port"])
        number = target if isinstance(target, int) else _named(pod, target, port)
        if number is None:
            continue
        entry = {
            "name": port.get("name", ""),
            "port": number,
            "protocol": port.get("protocol", "TCP"),
            **({"appProtocol": port["appProtocol"]} if port.get("appProtocol") else {}),
        }
        found.append(tuple(sorted(entry.items())))
    return tuple(found)


def _named(pod: Object, name: str, port: Mapping[str, Any]) -> int | None:
    if name.isdecimal():
        return int(name)
    for container in pod["spec"].get("containers") or ():
        for candidate in container.get("ports") or ():
            same = candidate.get("protocol", "TCP") == port.get("protocol", "TCP")
            if candidate.get("name") == name and same:
                number: int = candidate["containerPort"]
                return number
    return None


def endpoint(service: Object, pod: Object, address: str) -> dict[str, Any]:
    serving, terminating = is_ready(pod), is_going(pod)
    ready = (serving and not terminating) or bool(service["spec"].get("publishNotReadyAddresses"))
    found: dict[str, Any] = {
        "addresses": [address],
        "conditions": {"ready": ready, "serving": serving, "terminating": terminating},
        "targetRef": {
            "kind": "Pod",
            "namespace": meta(pod)["namespace"],
            "name": meta(pod)["name"],
            "uid": meta(pod)["uid"],
        },
    }
    if pod["spec"].get("nodeName"):
        found["nodeName"] = pod["spec"]["nodeName"]
    hostname, subdomain = pod["spec"].get("hostname"), pod["spec"].get("subdomain")
    if hostname and subdomain == meta(service)["name"]:
        found["hostname"] = hostname
    return found


def _has_address(pod: Object) -> bool:
    return phase_of(pod) not in ("Succeeded", "Failed") and bool(_addresses(pod))


def _addresses(pod: Object) -> list[str]:
    status = status_of(pod)
    many = [entry["ip"] for entry in status.get("podIPs") or ()]
    return many or ([status["podIP"]] if status.get("podIP") else [])


def _labels(service: Object) -> dict[str, str]:
    headless = service["spec"].get("clusterIP") == "None"
    return {
        **labels_of(service),
        SERVICE_NAME: meta(service)["name"],
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
            "generateName": f"{meta(service)['name']}-",
            "namespace": meta(service)["namespace"],
            "labels": _labels(service),
            "ownerReferences": [owner_reference(SERVICE, service)],
        },
        "addressType": family,
        "ports": [dict(port) for port in ports],
        "endpoints": endpoints,
    }


def _key(slice_: Object) -> tuple[str, Ports]:
    ports = tuple(tuple(sorted(port.items())) for port in slice_.get("ports") or ())
    return slice_["addressType"], ports


def _same(slice_: Object, endpoints: list[dict[str, Any]], labels: Mapping[str, str]) -> bool:
    order = msgspec.json.Encoder(order="deterministic").encode
    same = sorted(map(order, slice_.get("endpoints") or ())) == sorted(map(order, endpoints))
    return same and labels_of(slice_) == labels
