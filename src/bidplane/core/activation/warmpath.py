"""
The way to a service that is awake: through the activator, or past it. Pure.

With `warmPath: direct`, whoever reads the EndpointSlices of the Service (a gateway, an ingress
controller) sends requests to its pods. While none serves, a slice of ours leads to the activator,
which holds them and wakes the service. The pods' own slices are the workload controllers'.
"""

from __future__ import annotations

import ipaddress

import msgspec

from bidplane.api.endpoint import EndpointPhase, EndpointSpec, WarmPath
from bidplane.api.kinds import ENDPOINT, ENDPOINT_SLICE, Draft, Object
from bidplane.api.objects import metadata_of
from bidplane.core.activation.lifecycle import port_name
from bidplane.core.workloads.common import owner_reference
from bidplane.core.workloads.endpointslices import MANAGED_BY, SERVICE_NAME

_MANAGER = "endpoint-controller.bidplane.dev"
_SUFFIX = "-activator"


class ActivatorAddress(msgspec.Struct, frozen=True):
    """An address under which gateways reach an activator over HTTP."""

    ip: str
    port: int


def slice_name(endpoint: str) -> str:
    return endpoint[: 253 - len(_SUFFIX)] + _SUFFIX


def activator_slice(
    original: Object,
    spec: EndpointSpec,
    service: Object | None,
    phase: EndpointPhase,
    activator: ActivatorAddress | None,
) -> Draft | None:
    """
    Return the slice that leads to the activator while no pod serves; None if there is to be none.

    `original` is the Endpoint in its plane, which owns the slice.
    """
    if spec.warm_path is not WarmPath.DIRECT or service is None or activator is None:
        return None
    name = port_name(spec.target, service)
    if name is None or phase is EndpointPhase.REFUSED:
        return None
    ready = {"ready": True, "serving": True, "terminating": False}
    leads_here = phase is not EndpointPhase.READY
    family = "IPv6" if ipaddress.ip_address(activator.ip).version == 6 else "IPv4"
    return {
        "apiVersion": ENDPOINT_SLICE.api_version,
        "kind": ENDPOINT_SLICE.kind,
        "metadata": {
            "name": slice_name(metadata_of(original)["name"]),
            "namespace": metadata_of(original)["namespace"],
            "labels": {SERVICE_NAME: spec.target.service, MANAGED_BY: _MANAGER},
            "ownerReferences": [owner_reference(ENDPOINT, original)],
        },
        "addressType": family,
        "ports": [{"name": name, "port": activator.port, "protocol": "TCP"}],
        "endpoints": [{"addresses": [activator.ip], "conditions": ready}] if leads_here else [],
    }
