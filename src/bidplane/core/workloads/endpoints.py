"""The Endpoints of a Service: its EndpointSlices, for clients that read the old kind."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from bidplane.api.kinds import ENDPOINTS, Object
from bidplane.api.objects import is_deleted, labels_of, metadata_of
from bidplane.core.workloads.endpointslices import HEADLESS, Ports, endpoint, ports, serving_pods
from bidplane.core.workloads.plan import CreateObject, Operation, Patch

MANAGED_BY = "endpoints.kubernetes.io/managed-by"
OURS = "endpoint-controller"
_MOST = 1000  # addresses: as many as upstream puts into one


def operation(
    service: Object, pods: Sequence[Object], nodes: Collection[str], current: Object | None
) -> Operation | None:
    """
    Return the operation that makes `current` right; None if it is.

    Also None for a Service without a selector, whose Endpoints someone else writes.
    """
    selector = service["spec"].get("selector")
    if is_deleted(service) or not selector or service["spec"].get("type") == "ExternalName":
        return None
    subsets = _subsets(service, serving_pods(service, pods, nodes))
    headless = service["spec"].get("clusterIP") == "None"
    labels = {
        **labels_of(service),
        MANAGED_BY: OURS,
        **({HEADLESS: ""} if headless else {}),
    }
    if current is None:
        created = {
            "apiVersion": ENDPOINTS.api_version,
            "kind": ENDPOINTS.kind,
            "metadata": {
                "name": metadata_of(service)["name"],
                "namespace": metadata_of(service)["namespace"],
                "labels": labels,
            },
            **({"subsets": subsets} if subsets else {}),
        }
        return CreateObject(ENDPOINTS, created, service)
    if (current.get("subsets") or []) == subsets and labels_of(current) == labels:
        return None
    removed = dict.fromkeys(labels_of(current).keys() - labels.keys())
    change = {"subsets": subsets or None, "metadata": {"labels": {**labels, **removed}}}
    return Patch(ENDPOINTS, current, change)


def _subsets(service: Object, pods: Sequence[Object]) -> list[dict[str, Any]]:
    """Return the subsets of the Endpoints, one for each set of ports."""
    by_ports: dict[Ports, dict[str, list[dict[str, Any]]]] = {}
    count = 0
    for pod, address in _pods_by_address(service, pods):
        if is_deleted(pod) or count >= _MOST:
            continue  # the old kind cannot show a pod that is being deleted
        count += 1
        slice_endpoint = endpoint(service, pod, address)
        entry: dict[str, Any] = {
            "ip": address,
            **{
                key: slice_endpoint[key]
                for key in ("hostname", "nodeName")
                if key in slice_endpoint
            },
            "targetRef": slice_endpoint["targetRef"],
        }
        empty_group: dict[str, list[dict[str, Any]]] = {"addresses": [], "notReadyAddresses": []}
        target = by_ports.setdefault(ports(service, pod), empty_group)
        target[
            "addresses" if slice_endpoint["conditions"]["ready"] else "notReadyAddresses"
        ].append(entry)
    return [
        {
            **{key: value for key, value in group.items() if value},
            **({"ports": [dict(port) for port in group_ports]} if group_ports else {}),
        }
        for group_ports, group in by_ports.items()
    ]


def _pods_by_address(service: Object, pods: Sequence[Object]) -> list[tuple[Object, str]]:
    """Return pods with their address of the Service's first family, sorted by address."""
    family = (service["spec"].get("ipFamilies") or ["IPv4"])[0]
    pairs = []
    for pod in pods:
        status = pod.get("status") or {}
        addresses = [entry["ip"] for entry in status.get("podIPs") or ()] or [
            status.get("podIP", "")
        ]
        address = next((a for a in addresses if a and (":" in a) == (family == "IPv6")), None)
        if address is not None:
            pairs.append((pod, address))
    return sorted(pairs, key=lambda pair: pair[1])
