"""The Endpoints of a Service: its EndpointSlices, for clients that read the old kind."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from bidplane.api.kinds import ENDPOINTS, Object
from bidplane.core.workloads.common import is_going, labels_of, meta
from bidplane.core.workloads.endpointslices import HEADLESS, Ports, answering, endpoint, ports
from bidplane.core.workloads.plan import Create, Operation, Patch

MANAGED_BY = "endpoints.kubernetes.io/managed-by"
OURS = "endpoint-controller"
_MOST = 1000  # addresses: as many as upstream puts into one


def operation(
    service: Object, pods: Sequence[Object], nodes: Collection[str], known: Object | None
) -> Operation | None:
    """What makes `known` right; None when it is, or when its author is somebody else."""
    selector = service["spec"].get("selector")
    if is_going(service) or not selector or service["spec"].get("type") == "ExternalName":
        return None
    subsets = _subsets(service, answering(service, pods, nodes))
    headless = service["spec"].get("clusterIP") == "None"
    labels = {
        **labels_of(service),
        MANAGED_BY: OURS,
        **({HEADLESS: ""} if headless else {}),
    }
    if known is None:
        made = {
            "apiVersion": ENDPOINTS.api_version,
            "kind": ENDPOINTS.kind,
            "metadata": {
                "name": meta(service)["name"],
                "namespace": meta(service)["namespace"],
                "labels": labels,
            },
            **({"subsets": subsets} if subsets else {}),
        }
        return Create(ENDPOINTS, made, service)
    if (known.get("subsets") or []) == subsets and labels_of(known) == labels:
        return None
    gone = dict.fromkeys(labels_of(known).keys() - labels.keys())
    change = {"subsets": subsets or None, "metadata": {"labels": {**labels, **gone}}}
    return Patch(ENDPOINTS, known, change)


def _subsets(service: Object, pods: Sequence[Object]) -> list[dict[str, Any]]:
    by_ports: dict[Ports, dict[str, list[dict[str, Any]]]] = {}
    count = 0
    for pod, address in _by_address(service, pods):
        if is_going(pod) or count >= _MOST:
            continue  # on its way out: the old kind has no word for it
        count += 1
        found = endpoint(service, pod, address)
        one: dict[str, Any] = {
            "ip": address,
            **{key: found[key] for key in ("hostname", "nodeName") if key in found},
            "targetRef": found["targetRef"],
        }
        fresh: dict[str, list[dict[str, Any]]] = {"addresses": [], "notReadyAddresses": []}
        into = by_ports.setdefault(ports(service, pod), fresh)
        into["addresses" if found["conditions"]["ready"] else "notReadyAddresses"].append(one)
    return [
        {
            **{key: value for key, value in found.items() if value},
            **({"ports": [dict(port) for port in listens]} if listens else {}),
        }
        for listens, found in by_ports.items()
    ]


def _by_address(service: Object, pods: Sequence[Object]) -> list[tuple[Object, str]]:
    family = (service["spec"].get("ipFamilies") or ["IPv4"])[0]
    found = []
    for pod in pods:
        status = pod.get("status") or {}
        many = [entry["ip"] for entry in status.get("podIPs") or ()] or [status.get("podIP", "")]
        address = next((a for a in many if a and (":" in a) == (family == "IPv6")), None)
        if address is not None:
            found.append((pod, address))
    return sorted(found, key=lambda one: one[1])
