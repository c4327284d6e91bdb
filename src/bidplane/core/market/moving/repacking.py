"""
A whole GPU out of GPUs that are cut: which MIG instances to move together.

A pool cuts every GPU alike, so that instances of one profile never stand in each other's way; what
scattered instances keep from being sold is the largest part there is, a whole GPU. Which of them
move, and where to, `migplan` finds; who is worth it, `defragment` decides as for any block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bidplane.core.devices import migplan
from bidplane.core.devices.chain import SLICES
from bidplane.core.devices.mig import Profile, Slot
from bidplane.core.market.model import Incumbent, Lot, Won
from bidplane.core.market.moving.defragmentation import LeaseMove, MovePlan

_WHOLE = "whole"


def whole_gpu(lot: Lot, incumbents: Sequence[Incumbent], won: Sequence[Won]) -> MovePlan | None:
    """The cheapest moves after which one GPU of the lot is nobody's; None if there are none."""
    leaves = [leaf for leaf in lot.leaves if not leaf.in_chain]
    domain_of = {device: domain.name for domain in lot.domains for device in domain.cut}
    if not leaves or len(domain_of) < 2:
        return None
    # Where an instance may be is where the pool's geometry has one.
    card = {leaf.name: Profile(0, leaf.span, leaf.starts) for leaf in leaves}
    card[_WHOLE] = Profile(1, SLICES, (0,))
    instances = list(_instances(lot, incumbents, won))
    repacking = migplan.repack(
        _WHOLE,
        list(domain_of),
        instances,
        card,
        # More than all of them cost: `make_room` decides whether a bid pays for the moves.
        pays=1 + sum(instance.cost for instance in instances),
    )
    if isinstance(repacking, migplan.NoRoom) or not repacking.moves:
        return None
    leases = {incumbent.id: incumbent for incumbent in incumbents}
    return MovePlan(
        size=1,
        domain=domain_of[repacking.gpu],
        moves=tuple(
            LeaseMove(leases[move.instance], domain_of[move.to_gpu]) for move in repacking.moves
        ),
        device=repacking.gpu,
        homes=tuple((move.to_gpu, (move.to_slot.start,)) for move in repacking.moves),
    )


def _instances(
    lot: Lot, incumbents: Sequence[Incumbent], won: Sequence[Won]
) -> Iterator[migplan.MigInstance]:
    """All instances on GPUs that are cut; one whose holder is not in the round cannot move."""
    newly_won = {
        (device, winner.share, place)
        for winner in won
        for device, places in zip(winner.devices, winner.places, strict=False)
        for place in places
    }
    holders = {
        (device, incumbent.share, place): incumbent
        for incumbent in incumbents
        for device, _, places in (incumbent.parts if incumbent.share else ())
        for place in places
    }
    for domain in lot.domains:
        for device, free in domain.cut.items():
            for leaf in (leaf for leaf in lot.leaves if not leaf.in_chain):
                for start in leaf.starts:
                    place = device, leaf.name, start
                    if start in free.get(leaf.kind, ()) and place not in newly_won:
                        continue
                    holder = holders.get(place)
                    yield migplan.MigInstance(
                        id=holder.id if holder else "/".join((*place[:2], str(start))),
                        gpu=device,
                        slot=Slot(leaf.name, start),
                        movable=holder is not None and holder.movable and holder.gpus == 1,
                        cost=holder.compensation if holder else 0,
                    )
