"""
Machines that a bid's pod could run on: its GPUs' share of the machine has what it requests, and the
machine's node is one it asks for. A filter before the round, as for devices that nobody sells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

import msgspec

from bidplane.api.bid import BidReason
from bidplane.api.kinds import Object
from bidplane.api.shape import MOST_BLOCKS, PART_UNITS, Shape, fields_of
from bidplane.core.devices.chain import SLICES
from bidplane.core.devices.claims.model import matches_terms
from bidplane.core.leases.nodes import machine_room
from bidplane.core.market import shapes
from bidplane.core.market.model import Ask
from bidplane.core.nodes.fitting import written_amount
from bidplane.exchange.round.inventory import LotDevices, machine
from bidplane.exchange.snapshot import BidView
from bidplane.wire.quantity import parse


def where_it_fits(
    ask: Ask, bid: BidView, hosts: Mapping[str, Object], stocks: Sequence[LotDevices]
) -> Ask | tuple[BidReason, str]:
    """Return the ask, in machines that its pod fits; or why there is none."""
    nodes: dict[str, str] = {}  # by machine of the lots it may enter
    gpus: dict[str, int] = {}  # by machine, how many there are in all
    for item in stocks:
        for members in item.domains.values():
            key = machine(members[0])
            gpus[key] = gpus.get(key, 0) + len(members)
            if not ask.lots or item.lot in ask.lots:
                nodes[key] = members[0].node
    if not nodes:
        return ask  # the round says that there is nothing
    terms = [msgspec.to_builtins(term) for term in bid.terms]
    chosen = {m: node for m, node in nodes.items() if _is_chosen(terms, node, hosts.get(node))}
    if not chosen:
        return BidReason.NO_MACHINE_FITS, (
            "no node with such GPUs is as its pod's nodeSelector and node affinity say:"
            f" {_in_words(terms)}; change them, or ask for other GPUs"
        )
    part = _gpus(ask, stocks)
    rooms = {
        m: {n: amount * part / gpus[m] for n, amount in machine_room(hosts.get(node)).items()}
        for m, node in chosen.items()
    }
    requests = {name: parse(amount) for name, amount in bid.requests.items()}
    able = {
        m: room
        for m, room in rooms.items()
        if all(room.get(name, Fraction(0)) >= amount for name, amount in requests.items())
    }
    if not able:
        return BidReason.NO_MACHINE_FITS, _too_much(requests, rooms, ask)
    if len(able) == len(nodes) or ask.is_part or (ask.also and not ask.one_node):
        return ask  # parts are sold by their lot; their pod is told if it does not fit
    most = ask.machines or dict.fromkeys(able, MOST_BLOCKS)
    machines = {m: count for m, count in most.items() if m in able}
    return msgspec.structs.replace(ask, one_node=True, machines=machines)


def fits_everywhere(
    bid: BidView, lot: str, hosts: Mapping[str, Object], stocks: Sequence[LotDevices]
) -> bool:
    """Return whether a bid's pod fits every machine of a lot, wherever a float takes a GPU from."""
    if not bid.requests and not bid.terms:
        return True
    shape = fields_of(Shape, bid)
    ask = Ask(id=bid.uid, agent=bid.agent, owner="", price=bid.price, lots=(lot,), **shape)
    routed = where_it_fits(ask, bid, hosts, stocks)
    return isinstance(routed, Ask) and routed.machines is None


def _is_chosen(terms: Sequence[Object], name: str, node: Object | None) -> bool:
    marks = ((node or {}).get("metadata") or {}).get("labels") or {}
    return not terms or matches_terms(terms, name, marks)


def _gpus(ask: Ask, stocks: Sequence[LotDevices]) -> Fraction:
    """Return how many GPUs one pod has of what it asks for."""
    if ask.is_part:
        shares = (shapes.share_in(ask, item.extent) for item in stocks)
        names = [share for share in shares if share and not isinstance(share, BidReason)]
        leaves = [leaf for item in stocks for name in names if (leaf := item.leaf(name))]
        if not leaves:
            return Fraction(1)
        leaf = leaves[0]
        return Fraction(leaf.size, PART_UNITS) if leaf.in_chain else Fraction(leaf.span, SLICES)
    needs = (ask, *ask.also) if ask.one_node else (ask,)
    return Fraction(sum(need.gpus for need in needs))


def _too_much(
    requests: Mapping[str, Fraction], rooms: Mapping[str, Mapping[str, Fraction]], ask: Ask
) -> str:
    most = {
        name: max((room.get(name, Fraction(0)) for room in rooms.values()), default=Fraction(0))
        for name in requests
    }
    requested = ", ".join(f"{name} {written_amount(name, n)}" for name, n in requests.items())
    available = ", ".join(f"{name} {written_amount(name, n)}" for name, n in most.items())
    part = ask.share or (f"what has {ask.memory}" if ask.memory else "")
    share = f"{part} of a GPU" if part else f"{_gpus(ask, ())} of their GPUs"
    return (
        f"its pod requests {requested}, and {share} comes with at most {available} on any machine:"
        " request less, or ask for more GPUs"
    )


def _in_words(terms: Sequence[Object]) -> str:
    return " or ".join(
        ", ".join(
            f"{rule['key']} {rule['operator']} {'|'.join(rule.get('values') or ())}".strip()
            for rule in (*term.get("matchExpressions", ()), *term.get("matchFields", ()))
        )
        for term in terms
    )
