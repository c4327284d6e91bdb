"""
The names that pods of a plane can resolve, as lines of /etc/hosts.

A plane has no name server. Instead each pod carries the names that it could resolve in its own
namespace: those of Services, and those of pods with a host name in a Service. The lines follow as
pods come and go. A Service's cluster IP has no listener, so the Service's name leads straight to
its pods; that works where the Service's ports are the pods' ports.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bidplane.api import labels
from bidplane.api.kinds import Object

DOMAIN = "cluster.local"
_SERVICE_NAME = "kubernetes.io/service-name"
_MOST_BYTES = 64 << 10  # of an annotation, of which an object has 256 KiB in all


def hosts(namespace: str, services: Sequence[Object], slices: Sequence[Object]) -> str:
    """Return the lines of /etc/hosts that the pods of a namespace share; "" if there are none."""
    names_by_address: dict[str, dict[str, None]] = {}
    by_service: dict[str, list[Object]] = {}
    for endpoint_slice in slices:
        service = (endpoint_slice["metadata"].get("labels") or {}).get(_SERVICE_NAME, "")
        by_service.setdefault(service, []).append(endpoint_slice)
    for service in services:
        for address, name in _named_addresses(
            service, by_service.get(service["metadata"]["name"], ())
        ):
            names_by_address.setdefault(address, {}).update(
                dict.fromkeys(_qualified_forms(name, namespace))
            )
    text = ""
    for address in sorted(names_by_address):
        line = f"{address} {' '.join(names_by_address[address])}\n"
        if len(text) + len(line) > _MOST_BYTES:
            break
        text += line
    return text


def hosts_file(pod: Object, address: str, hostname: str) -> str:
    """Return a pod's complete /etc/hosts: its own name, its host aliases and its plane's lines."""
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    subdomain = pod["spec"].get("subdomain")
    annotations = pod["metadata"].get("annotations") or {}
    namespace = annotations.get(labels.PLANE_NAMESPACE) or pod["metadata"]["namespace"]
    qualified_names = [f"{hostname}.{subdomain}.{namespace}.svc.{DOMAIN}"] if subdomain else []
    lines.append(" ".join([address, *qualified_names, hostname]))
    lines += [
        " ".join([alias["ip"], *(alias.get("hostnames") or ())])
        for alias in pod["spec"].get("hostAliases") or ()
    ]
    lines += annotations.get(labels.HOSTS, "").splitlines()
    return "\n".join(lines) + "\n"


def _named_addresses(service: Object, slices: Sequence[Object]) -> Iterator[tuple[str, str]]:
    """
    Yield each ready address behind a Service with the name, relative to the namespace, it has.
    """
    name = service["metadata"]["name"]
    headless = service["spec"].get("clusterIP") == "None"
    for endpoint_slice in slices:
        if not headless and not _keeps_ports(service, endpoint_slice):
            continue
        for endpoint in endpoint_slice.get("endpoints") or ():
            if (endpoint.get("conditions") or {}).get("ready") is False:
                continue
            for address in endpoint.get("addresses") or ():
                if endpoint.get("hostname"):
                    yield address, f"{endpoint['hostname']}.{name}"
                yield address, name


def _keeps_ports(service: Object, slice_: Object) -> bool:
    """Return whether the pods listen on the very ports that the Service names."""
    pod_ports = {port.get("name") or "": port.get("port") for port in slice_.get("ports") or ()}
    service_ports = {
        port.get("name") or "": port["port"] for port in service["spec"].get("ports") or ()
    }
    return service_ports == pod_ports


def _qualified_forms(name: str, namespace: str) -> list[str]:
    """Return the forms in which a pod may write a name, from the short to the fully qualified."""
    namespaced = f"{name}.{namespace}"
    return [name, namespaced, f"{namespaced}.svc", f"{namespaced}.svc.{DOMAIN}"]
