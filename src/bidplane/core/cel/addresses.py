"""Kubernetes' functions for IP addresses, networks and URLs. Each is a map with a tag."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import SplitResult, parse_qs, urlsplit

IP, CIDR, URL = "net.IP", "net.CIDR", "kubernetes.URL"

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Overload = tuple[Any, list[Any], bool, Callable[..., Any]]


def _tag(kind: str, text: object) -> dict[str, str]:
    return {"type": kind, "text": str(text)}


def _text(value: Any, kind: str) -> str:
    if not isinstance(value, dict) or value.get("type") != kind:
        raise ValueError(f"not a {kind}")
    return str(value["text"])


def _parse_ip(text: str) -> Address:
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address) and (address.ipv4_mapped or address.scope_id):
        raise ValueError(f"{text!r}: IPv4-mapped addresses and zones are not allowed")
    return address


def _parse_cidr(text: str) -> Network:
    if "/" not in text:
        raise ValueError(f"{text!r} is not a network, such as 10.0.0.0/8")
    return ipaddress.ip_network(text, strict=False)


def _parse_url(text: str) -> SplitResult:
    url = urlsplit(text)
    if not (url.scheme and url.netloc) and not text.startswith("/"):
        raise ValueError(f"{text!r} is not an absolute URL")
    return url


def _ip(value: Any) -> Address:
    return _parse_ip(_text(value, IP))


def _cidr(value: Any) -> Network:
    return _parse_cidr(_text(value, CIDR))


def _url(value: Any) -> SplitResult:
    return _parse_url(_text(value, URL))


def _holds(network: Any, address: Any) -> bool:
    address = _parse_ip(address) if isinstance(address, str) else _ip(address)
    return address in _cidr(network)


def _holds_network(network: Any, other: Any) -> bool:
    outer = _cidr(network)
    inner = _parse_cidr(other) if isinstance(other, str) else _cidr(other)
    return outer.version == inner.version and (
        outer.prefixlen <= inner.prefixlen and inner.network_address in outer
    )


def _family(value: Any) -> int:
    return _ip(value).version


def _says(parse: Callable[[str], Any]) -> Callable[[str], bool]:
    def check(text: str) -> bool:
        try:
            parse(text)
        except ValueError:
            return False
        return True

    return check


def overloads(kinds: Any, tagged: Any) -> Iterator[tuple[str, list[Overload]]]:
    text, true = kinds.STRING, kinds.BOOL
    yield (
        "ip",
        [
            (tagged, [text], False, lambda t: _tag(IP, _parse_ip(t))),
            (tagged, [tagged], True, lambda c: _tag(IP, _text(c, CIDR).split("/")[0])),
        ],
    )
    yield "isIP", [(true, [text], False, _says(_parse_ip))]
    yield "cidr", [(tagged, [text], False, lambda t: (_parse_cidr(t), _tag(CIDR, t))[1])]
    yield "isCIDR", [(true, [text], False, _says(_parse_cidr))]
    yield "url", [(tagged, [text], False, lambda t: (_parse_url(t), _tag(URL, t))[1])]
    yield "isURL", [(true, [text], False, _says(_parse_url))]
    yield "family", [(kinds.INT, [tagged], True, _family)]
    for name, attribute in (
        ("isUnspecified", "is_unspecified"),
        ("isLoopback", "is_loopback"),
        ("isLinkLocalUnicast", "is_link_local"),
        ("isGlobalUnicast", "is_global"),
    ):
        yield name, [(true, [tagged], True, lambda v, a=attribute: bool(getattr(_ip(v), a)))]
    yield (
        "containsIP",
        [
            (true, [tagged, text], True, _holds),
            (true, [tagged, tagged], True, _holds),
        ],
    )
    yield (
        "containsCIDR",
        [
            (true, [tagged, text], True, _holds_network),
            (true, [tagged, tagged], True, _holds_network),
        ],
    )
    yield "masked", [(tagged, [tagged], True, lambda c: _tag(CIDR, _cidr(c)))]
    yield "prefixLength", [(kinds.INT, [tagged], True, lambda c: _cidr(c).prefixlen)]
    yield "getScheme", [(text, [tagged], True, lambda u: _url(u).scheme)]
    yield "getHost", [(text, [tagged], True, lambda u: _url(u).netloc.rpartition("@")[2])]
    yield "getHostname", [(text, [tagged], True, lambda u: _url(u).hostname or "")]
    yield "getPort", [(text, [tagged], True, lambda u: str(_url(u).port or ""))]
    yield "getEscapedPath", [(text, [tagged], True, lambda u: _url(u).path)]
    yield (
        "getQuery",
        [(kinds.Map(text, kinds.List(text)), [tagged], True, lambda u: parse_qs(_url(u).query))],
    )
