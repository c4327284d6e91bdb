"""
The listeners of agents' services: for each activator process one for HTTP and, with certificates,
one for HTTPS.

Several processes listen on one address (SO_REUSEPORT): the kernel spreads connections over them.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from bidplane.errors import UserError
from bidplane.http.proxy import certificates
from bidplane.http.server.serve import bind, bind_near, bind_shared
from bidplane.runtime.installation import Installation

_LOOPBACK = "127.0.0.1"
_MOST_ACTIVATORS = 64
FIRST = "activator"
# A wildcard address, with an address elsewhere (for documentation, RFC 5737 and 3849).
_ANY = {
    "0.0.0.0": (socket.AF_INET, "192.0.2.1"),  # compared, not bound
    "::": (socket.AF_INET6, "2001:db8::1"),
}


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)  # cyclopts reads no structs
class ServiceOptions:
    """The addresses, certificates and processes of agents' services."""

    services_http: Annotated[
        str,
        Parameter(
            show_default=False,
            help="HOST:PORT where agents' services are served over HTTP; else this machine alone.",
        ),
    ] = ""
    services_https: Annotated[
        str, Parameter(show_default=False, help="The same over HTTPS; needs --tls-cert-dir.")
    ] = ""
    tls_cert_dir: Annotated[
        Path | None,
        Parameter(help="Serve HTTPS with the certificates of this directory, by the host's name."),
    ] = None
    activators: Annotated[int, Parameter(help="Processes that serve them.")] = 1


class ServiceListeners:
    """The bound sockets of every activator process, by its name, and their addresses."""

    def __init__(
        self, options: ServiceOptions, target: Installation, *, server_port: int, any_port: bool
    ) -> None:
        if not 1 <= options.activators <= _MOST_ACTIVATORS:
            raise UserError(f"--activators {options.activators}: use 1 to {_MOST_ACTIVATORS}")
        if options.services_https and options.tls_cert_dir is None:
            raise UserError("--services-https needs certificates: name them with --tls-cert-dir")
        self.certificates = (
            options.tls_cert_dir.resolve() if options.tls_cert_dir is not None else None
        )
        if self.certificates is not None:
            certificates.check(self.certificates)  # refused here if one cannot be used
        _, _, plain, tls = target.ports()

        def listeners(option: str, text: str, last: int, offset: int) -> list[socket.socket]:
            first = [last] if last else [] if any_port else [server_port + offset]
            return _bind(option, text, first, options.activators)

        kinds = [listeners("--services-http", options.services_http, plain, 2)]
        self.url = f"http://{_shown(kinds[0][0])}"
        self.address = _reachable(kinds[0][0])
        self.tls_url = ""
        if self.certificates is not None:
            kinds.append(listeners("--services-https", options.services_https, tls, 3))
            self.tls_url = f"https://{_shown(kinds[1][0])}"
        names = [FIRST, *(f"{FIRST}-{number + 1}" for number in range(1, options.activators))]
        self.by_name = dict(zip(names, zip(*kinds, strict=True), strict=True))


def _bind(option: str, text: str, first: list[int], count: int) -> list[socket.socket]:
    if text:
        host, separator, port = text.rpartition(":")
        if not separator or not port.isdecimal() or int(port) > 65535:
            raise UserError(f"{option} {text}: use HOST:PORT, for example 0.0.0.0:443")
        try:
            listener = bind(host.strip("[]"), int(port))
        except UserError as error:
            raise UserError(f"{option}: {str(error).partition(';')[0]}") from None
    else:
        listener = bind_near(_LOOPBACK, first)
    return [listener] if count == 1 else bind_shared(listener, count)


def _shown(listener: socket.socket) -> str:
    """Return an address under which this machine reaches a listener."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": _LOOPBACK, "::": "::1"}.get(host, host)  # compared, not bound
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _reachable(listener: socket.socket) -> tuple[str, int]:
    """Return an address under which other machines reach a listener, if any of it is such a one."""
    host, port = listener.getsockname()[:2]
    if host not in _ANY:
        return host, port
    probe, elsewhere = _ANY[host]
    with socket.socket(probe, socket.SOCK_DGRAM) as route:
        try:
            route.connect((elsewhere, 9))  # sends nothing: it asks the kernel for our own address
            return str(route.getsockname()[0]), port
        except OSError:
            return _LOOPBACK, port
