"""
Isolation of agents' pods from each other: a routing table per agent.

What comes from a pod's link is routed by its agent's table, which leads to that agent's pods and
to no other pod. What is not for a pod (the machine, and with `--egress` what lies beyond) is in
none of these tables, and goes the machine's own way. All of it is the kernel's: a new agent
of the node finds it as it was. It takes `ip`, and nothing that filters.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from bidplane.node.process.network.iproute import ip, ip_json

_FIRST_TABLE = 1 << 30  # out of the way of tables with names, and of other programs'


class _Rule(msgspec.Struct):
    table: str = ""
    iif: str = ""


def table_of(agent: str) -> int:
    """Return the agent's table, by a hash of its name; collisions are too rare to matter."""
    digest = hashlib.sha256(agent.encode()).digest()
    return _FIRST_TABLE + int.from_bytes(digest[:4], "big") % _FIRST_TABLE


async def isolate(link: str, address: str, agent: str, pods: str) -> bool:
    """Route a pod's link by its agent's own table; return False if that fails."""
    await remove_rules(link)  # rules of an earlier try
    table = table_of(agent)
    return await ip(
        [],
        f"route replace blackhole {pods} table {table}",
        f"route replace {address}/32 dev {link} table {table}",
        f"rule add iif {link} lookup {table}",
    )


async def remove_rules(link: str) -> None:
    """Remove the rules of a deleted link, and the agent's table with its last one."""
    rules = [rule for rule in await _rules() if rule.iif == link]
    for rule in rules:
        await ip([], f"rule del iif {link} lookup {rule.table}")
    used_tables = {rule.table for rule in await _rules()} if rules else set()
    for table in {rule.table for rule in rules} - used_tables:
        await ip([], f"route flush table {table}")


async def _rules() -> Sequence[_Rule]:
    with suppress(msgspec.MsgspecError):
        return msgspec.json.decode(await ip_json("rule", "show"), type=list[_Rule])
    return []
