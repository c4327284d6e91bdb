"""
Egress from the machine for pods with network namespaces: NAT, if the owner enables it.

Packets of pods leave with the machine's address, and only their answers come back. Nothing is
opened to the inside. What is set up stays when the node stops, as its pods do.
"""

from __future__ import annotations

import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import msgspec

from bidplane.errors import UserError

TABLE = "bidplane"
_SETTINGS = Path("/proc/sys/net/ipv4/conf")


def enable_egress(pods: str) -> None:
    """Masquerade and forward traffic of that address range; safe to repeat. Raises `UserError`."""
    if shutil.which("nft") is None:
        raise UserError("--egress needs `nft` (the package nftables), which is not installed")
    rules = f"""
add table ip {TABLE}
flush table ip {TABLE}
add chain ip {TABLE} out {{ type nat hook postrouting priority 100 ; }}
add rule ip {TABLE} out ip saddr {pods} ip daddr != {pods} masquerade
"""
    done = subprocess.run(["nft", "-f", "-"], input=rules, capture_output=True, text=True)
    if done.returncode:
        problem = (done.stderr.strip().splitlines() or ["no reason given"])[0]
        raise UserError(f"--egress cannot be set up: nft: {problem}")
    ways = _default_route_devices()
    if not ways:
        raise UserError("--egress: this machine itself has no default route")
    for device in ways:
        # Only on these devices, not on every network of the machine.
        try:
            (_SETTINGS / device / "forwarding").write_text("1")
        except OSError as error:
            raise UserError(
                f"--egress: forwarding cannot be turned on for {device}: {error.strerror}"
            ) from error


def _default_route_devices() -> list[str]:
    done = subprocess.run(
        ["ip", "-json", "-4", "route", "show", "default"], capture_output=True, check=False
    )
    with suppress(msgspec.MsgspecError):
        return sorted({route["dev"] for route in msgspec.json.decode(done.stdout or b"[]")})
    return []
