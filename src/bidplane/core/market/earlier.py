"""
Rounds as they were recorded, by this version or an earlier one, read as today's.

Earlier rounds counted weights in 56ths of a GPU and parts in eighths. Here they mean the same, in
today's numbers.
"""

from __future__ import annotations

import msgspec

from bidplane.api.money import GPU_WEIGHT
from bidplane.api.shape import part_units
from bidplane.core.devices.chain import FRACTIONS, PARTS
from bidplane.core.devices.ranges import Ranges, of_eighths
from bidplane.core.market.model import Domain, Incumbent, Lot, RoundInput, RoundResult

_EIGHTHS = "eighths"  # the kind by which a GPU was counted that was sold in eighths
_RULES_OF_EIGHTHS = 2  # and those before


def read_input(record: bytes) -> RoundInput:
    """Return the input of a recorded round."""
    round_input = msgspec.json.decode(record, type=RoundInput)
    if round_input.rules > _RULES_OF_EIGHTHS:
        return round_input
    return msgspec.structs.replace(
        round_input,
        lots=tuple(map(_lot, round_input.lots)),
        incumbents=tuple(map(_incumbent, round_input.incumbents)),
    )


def read_result(record: bytes) -> RoundResult:
    """Return the result of a recorded round."""
    result = msgspec.json.decode(record, type=RoundResult)
    if result.gpu_weight == GPU_WEIGHT:
        return result
    factor = GPU_WEIGHT // result.gpu_weight
    return msgspec.structs.replace(
        result,
        won=tuple(msgspec.structs.replace(w, weight=factor * w.weight) for w in result.won),
        lost=tuple(msgspec.structs.replace(n, weight=factor * n.weight) for n in result.lost),
        lots=tuple(msgspec.structs.replace(lot, used=factor * lot.used) for lot in result.lots),
        gpu_weight=GPU_WEIGHT,
    )


def _lot(lot: Lot) -> Lot:
    if not any(leaf.in_chain for leaf in lot.leaves):
        return lot
    return msgspec.structs.replace(lot, leaves=FRACTIONS, domains=tuple(map(_domain, lot.domains)))


def _domain(domain: Domain) -> Domain:
    cut = {
        device: {PARTS: of_eighths(kinds[_EIGHTHS])} if _EIGHTHS in kinds else kinds
        for device, kinds in domain.cut.items()
    }
    return msgspec.structs.replace(domain, cut=cut)


def _incumbent(lease: Incumbent) -> Incumbent:
    if part_units(lease.share) is None:
        return lease
    places: tuple[Ranges, ...] = tuple(map(of_eighths, lease.places))
    return msgspec.structs.replace(lease, places=places)
