"""
Pod addresses: one per pod.

Where network namespaces may be made, a pod gets one, with a pair of virtual interfaces
and an address this machine routes to it: two pods may both listen on 0.0.0.0:8080. Where
not, a pod gets an address of its own in 127.0.0.0/8; programs that listen on `$POD_IP`
do not meet.

Both follow from the pod's uid, so nothing has to be remembered.
"""

from __future__ import annotations

import asyncio
import ctypes
import hashlib
import ipaddress
import os
import shutil
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgspec

from bidplane.errors import UserError
from bidplane.node.process.network import isolation
from bidplane.node.process.network.egress import enable_egress
from bidplane.node.process.network.iproute import ip

POD_RANGE = ipaddress.IPv4Network("10.201.0.0/16")
_GATEWAY = "169.254.77.1"  # on our side of every pair; each is a link of its own
_TRIES = 16
_CLONE_NEWNET = 0x40000000
_NAMESPACES = Path("/run/netns")


class PodNetwork(msgspec.Struct, frozen=True):
    address: str
    namespace: str = ""  # a file to enter it by, if it is one

    @property
    def enter(self) -> list[str]:
        return ["nsenter", f"--net={self.namespace}"] if self.namespace else []


class Network(Protocol):
    kind: str

    async def join(self, uid: str, agent: str) -> PodNetwork:
        """Return the pod's network, made if it is missing; `agent` is empty for a foreign pod."""

    def find(self, uid: str, address: str) -> PodNetwork:
        """Return the network of a pod that has joined."""

    async def leave(self, uid: str) -> None: ...

    async def connect(
        self, place: PodNetwork, port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]: ...


def choose(wish: str, *, egress: bool = False) -> Network:
    """
    Return the network of a kind: `auto`, `namespace` or `loopback`. Raises `UserError` if it is
    not available.

    With `egress`, pods reach all hosts that the machine reaches; in `loopback` they always do.
    """
    if wish == "loopback":
        return Loopback()
    problem = _no_namespaces()
    if not problem:
        if egress:
            enable_egress(str(POD_RANGE))
        return Namespaces()
    if wish == "namespace":
        raise UserError(f"--network namespace is not available: {problem}; use loopback")
    return Loopback()


def _no_namespaces() -> str:
    for command in ("ip", "nsenter"):
        if shutil.which(command) is None:
            return f"there is no `{command}` on this machine"
    if os.geteuid() != 0:
        return "it takes root"
    # The way to be sure is to try, in a child: a container's root may not.
    child = os.fork()
    if not child:
        os._exit(0 if ctypes.CDLL(None).unshare(_CLONE_NEWNET) == 0 else 1)
    return "" if os.waitpid(child, 0)[1] == 0 else "this root may not make network namespaces"


def _number(uid: str, attempt: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{uid}/{attempt}".encode()).digest()[:6], "big")


class Loopback:
    kind = "loopback"

    async def join(self, uid: str, agent: str) -> PodNetwork:
        # 127.1.0.1 to 127.254.255.254: sixteen million, and never the machine's own.
        number = _number(uid, 0)
        return PodNetwork(
            f"127.{1 + number % 254}.{(number >> 8) % 256}.{1 + (number >> 16) % 254}"
        )

    def find(self, uid: str, address: str) -> PodNetwork:
        return PodNetwork(address)

    async def leave(self, uid: str) -> None:
        return

    async def connect(
        self, place: PodNetwork, port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(place.address, port)


class Namespaces:
    kind = "namespace"

    async def join(self, uid: str, agent: str) -> PodNetwork:
        name, link = _names(uid)
        for attempt in range(_TRIES):
            address = _address(uid, attempt)
            await _remove(name)
            if not await self._make(name, link, address):
                continue
            if agent and not await isolation.isolate(link, address, agent, str(POD_RANGE)):
                await self.leave(uid)
                raise OSError(
                    f"the pod's network cannot be isolated from pods of agents other than {agent}"
                )
            return PodNetwork(address, str(_NAMESPACES / name))
        raise OSError(f"no free address in {POD_RANGE}")

    async def _make(self, name: str, link: str, address: str) -> bool:
        linked = await ip(
            [],
            f"netns add {name}",
            f"link add {link} type veth peer name eth0 netns {name}",
            f"addr add {_GATEWAY}/32 dev {link}",
            f"link set {link} up",
            f"route add {address}/32 dev {link}",
        )
        if not linked:
            return False
        _forward(link)
        return await ip(
            ["-n", name],
            "link set lo up",
            f"addr add {address}/32 dev eth0",
            "link set eth0 up",
            f"route add {_GATEWAY} dev eth0",
            f"route add default via {_GATEWAY} dev eth0",
        )

    def find(self, uid: str, address: str) -> PodNetwork:
        return PodNetwork(address, str(_NAMESPACES / _names(uid)[0]))

    async def leave(self, uid: str) -> None:
        name, link = _names(uid)
        await _remove(name)
        await isolation.remove_rules(link)

    async def connect(
        self, place: PodNetwork, port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the pod's localhost, as a kubelet does, or else to its address."""
        inside = await asyncio.to_thread(_socket_inside, place, port)
        return await asyncio.open_connection(sock=inside)


def _namespace_exists(name: str) -> bool:
    return os.path.lexists(_NAMESPACES / name)


async def _remove(name: str) -> None:
    if _namespace_exists(name):
        await ip([], f"netns del {name}")


def _forward(link: str) -> None:
    """Forward packets from the link, so that pods can reach each other."""
    with suppress(OSError):
        Path(f"/proc/sys/net/ipv4/conf/{link}/forwarding").write_text("1")


def _socket_inside(place: PodNetwork, port: int) -> socket.socket:
    def connect() -> socket.socket:
        try:
            connection = socket.create_connection(("127.0.0.1", port), timeout=10)
        except ConnectionRefusedError:
            connection = socket.create_connection((place.address, port), timeout=10)
        connection.setblocking(False)
        return connection

    return _inside(place, connect)


def listen_inside(place: PodNetwork, host: str, port: int) -> socket.socket:
    """Return a listening socket in the pod's network."""

    def listen() -> socket.socket:
        listener = socket.create_server((host, port))
        listener.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
        )  # inherited by what it accepts
        listener.setblocking(False)
        return listener

    return _inside(place, listen)


def _inside(place: PodNetwork, make: Callable[[], socket.socket]) -> socket.socket:
    """
    Return a socket made in the pod's network namespace.

    A socket belongs to the namespace of the thread that made it, so a thread of its own enters
    the namespace, and ends with this call.
    """
    result: list[socket.socket | OSError] = []

    def enter() -> None:
        try:
            with open(place.namespace, "rb") as file:
                if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), "cannot enter the pod's network")
            result.append(make())
        except OSError as error:
            result.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    if isinstance(result[0], OSError):
        raise result[0]
    return result[0]


def _names(uid: str) -> tuple[str, str]:
    digest = hashlib.sha256(uid.encode()).hexdigest()
    return f"bidplane-{digest[:12]}", f"bp{digest[:12]}"


def _address(uid: str, attempt: int) -> str:
    usable = POD_RANGE.num_addresses - 2
    return str(POD_RANGE[1 + _number(uid, attempt) % usable])
