"""
The names a plane has for addresses, as lines of /etc/hosts.

There is no name server in a plane. What a pod would ask one for in its own namespace, the
addresses behind Services and the pods with a host name in one, is carried to it instead, and
follows as pods come and go. A Service with an address of its own has nobody behind that
address; its name leads straight to its pods, which is the same where its ports are theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bidplane.api import labels
from bidplane.api.kinds import Object

DOMAIN = "cluster.local"
_SERVICE_NAME = "kubernetes.io/service-name"
_MOST_BYTES = 64 << 10  # of an annotation, of which an object has 256 KiB in all


def hosts(namespace: str, services: Sequence[Object], slices: Sequence[Object]) -> str:
    """Lines for the pods of a namespace; "" where there is nothing to know."""
    found: dict[str, dict[str, None]] = {}
    by_service: dict[str, list[Object]] = {}
    for one in slices:
        service = (one["metadata"].get("labels") or {}).get(_SERVICE_NAME, "")
        by_service.setdefault(service, []).append(one)
    for service in services:
        for address, name in _named(service, by_service.get(service["metadata"]["name"], ())):
            found.setdefault(address, {}).update(dict.fromkeys(_forms(name, namespace)))
    text = ""
    for address in sorted(found):
        line = f"{address} {' '.join(found[address])}\n"
        if len(text) + len(line) > _MOST_BYTES:
            break
        text += line
    return text


def hosts_file(pod: Object, address: str, hostname: str) -> str:
    """All of a pod's /etc/hosts: itself, what it says, and what its plane knows."""
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    subdomain = pod["spec"].get("subdomain")
    annotations = pod["metadata"].get("annotations") or {}
    namespace = annotations.get(labels.PLANE_NAMESPACE) or pod["metadata"]["namespace"]
    whole = [f"{hostname}.{subdomain}.{namespace}.svc.{DOMAIN}"] if subdomain else []
    lines.append(" ".join([address, *whole, hostname]))
    lines += [
        " ".join([alias["ip"], *(alias.get("hostnames") or ())])
        for alias in pod["spec"].get("hostAliases") or ()
    ]
    lines += annotations.get(labels.HOSTS, "").splitlines()
    return "\n".join(lines) + "\n"


def _named(service: Object, slices: Sequence[Object]) -> Iterator[tuple[str, str]]:
    name = service["metadata"]["name"]
    headless = service["spec"].get("clusterIP") == "None"
    for one in slices:
        if not headless and not _keeps_ports(service, one):
            continue
        for endpoint in one.get("endpoints") or ():
            if (endpoint.get("conditions") or {}).get("ready") is False:
                continue
            for address in endpoint.get("addresses") or ():
                if endpoint.get("hostname"):
                    yield address, f"{endpoint['hostname']}.{name}"
                yield address, name


def _keeps_ports(service: Object, slice_: Object) -> bool:
    """Whether who asks for the Service's ports would find them at its pods."""
    behind = {port.get("name") or "": port.get("port") for port in slice_.get("ports") or ()}
    asked = {port.get("name") or "": port["port"] for port in service["spec"].get("ports") or ()}
    return asked == behind


def _forms(name: str, namespace: str) -> list[str]:
    inside = f"{name}.{namespace}"
    return [name, inside, f"{inside}.svc", f"{inside}.svc.{DOMAIN}"]
