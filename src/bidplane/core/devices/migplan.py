"""
Plans for creating, destroying and moving MIG instances.

An instance is created where it takes least from what could still be created. When no GPU has room
for a larger instance, movable small instances are packed together, if the bidder for the large one
pays more than the moves cost. The result is a plan; the caller carries it out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from bidplane.core.devices import mig
from bidplane.core.devices.mig import Slot

# Bounds one search for room. Instances are few, so that no real search comes near it.
_MOST_STEPS = 20_000


class MigInstance(msgspec.Struct, frozen=True, kw_only=True):
    """An existing MIG instance."""

    id: str
    gpu: str
    slot: Slot
    movable: bool = False  # its pod can be restarted elsewhere
    cost: int = 0  # of the restart that a move causes, in micro-credits


class Destroy(msgspec.Struct, frozen=True, tag=True):
    """Destroy a MIG instance."""

    gpu: str
    slot: Slot


class Create(msgspec.Struct, frozen=True, tag=True):
    """Create a MIG instance."""

    gpu: str
    slot: Slot


class InstanceMove(msgspec.Struct, frozen=True):
    """The move of an instance: its pod ends on `gpu` and starts on `to_gpu`."""

    instance: str
    gpu: str
    slot: Slot
    to_gpu: str
    to_slot: Slot


Operation = Destroy | Create


class Repacking(msgspec.Struct, frozen=True):
    """A proposal: the moves that make room for a wanted instance."""

    gpu: str
    slot: Slot
    moves: tuple[InstanceMove, ...]
    cost: int

    def operations(self) -> Iterator[Operation]:
        """Yield the operations in order: all are destroyed before one is created in their place."""
        for move in self.moves:
            yield Destroy(move.gpu, move.slot)
        for move in self.moves:
            yield Create(move.to_gpu, move.to_slot)
        yield Create(self.gpu, self.slot)


class NoRoom(msgspec.Struct, frozen=True):
    """The reason why no instance can be created."""

    reason: str


def changes(
    current: Mapping[str, Sequence[Slot]], target: Mapping[str, Sequence[Slot]], card: mig.Card
) -> list[Operation]:
    """
    Return the operations that lead from one set of instances to another, destroying first.

    Raises `mig.BadGeometry` when no card can have the target.
    """
    for gpu, slots in target.items():
        wrong = mig.problem(slots, card)
        if wrong:
            raise mig.BadGeometry(f"{gpu}: {wrong}")
    destroyed = [
        Destroy(gpu, slot)
        for gpu, slots in sorted(current.items())
        for slot in sorted(set(slots) - set(target.get(gpu, ())))
    ]
    created = [
        Create(gpu, slot)
        for gpu, slots in sorted(target.items())
        for slot in sorted(set(slots) - set(current.get(gpu, ())))
    ]
    return [*destroyed, *created]


def place(
    profile: str, gpus: Mapping[str, Sequence[Slot]], card: mig.Card
) -> tuple[str, Slot] | None:
    """Return the GPU and slot for a new instance, where it leaves most to be created."""
    best: tuple[int, int, str, Slot] | None = None
    for gpu, slots in sorted(gpus.items()):
        potential = _potential(slots, card)
        for slot in _slots(profile, card):
            if mig.problem([*slots, slot], card):
                continue
            lost = potential - _potential([*slots, slot], card)
            # A GPU that is cut already rather than a whole one.
            candidate = (lost, int(not slots), gpu, slot)
            if best is None or candidate < best:
                best = candidate
    return (best[2], best[3]) if best else None


def _potential(slots: Sequence[Slot], card: mig.Card) -> int:
    """Return the summed weight of the instances that could still be created, a rough measure."""
    weight = mig.weights(card)
    return sum(
        weight[name]
        for name, profile in mig.profiles(card).items()
        for start in profile.starts
        if not mig.problem([*slots, Slot(name, start)], card)
    )


def _slots(profile: str, card: mig.Card) -> list[Slot]:
    """Return all slots at which a profile may start; raises `mig.BadGeometry` if there is none."""
    profiles = mig.profiles(card)
    if profile not in profiles:
        raise mig.BadGeometry(mig.no_profile(profile, card))
    return [Slot(profile, start) for start in profiles[profile].starts]


def repack(
    profile: str,
    gpus: Sequence[str],
    instances: Sequence[MigInstance],
    card: mig.Card,
    *,
    pays: int,
) -> Repacking | NoRoom:
    """
    The cheapest moves that make room for `profile`, if they cost less than it pays.

    Raises `mig.BadGeometry` for a profile these GPUs do not have.
    """
    repackings = [
        repacking
        for gpu in sorted(gpus)
        for slot in _slots(profile, card)
        if (repacking := _with_room_at(gpu, slot, gpus, instances, card)) is not None
    ]
    if not repackings:
        return NoRoom(f"no moves of movable instances make room for a {profile}")
    best = min(
        repackings,
        key=lambda repacking: (repacking.cost, len(repacking.moves), repacking.gpu, repacking.slot),
    )
    if best.moves and best.cost >= pays:
        return NoRoom(f"room for a {profile} would cost {best.cost} in restarts; it pays {pays}")
    return best


def _with_room_at(
    gpu: str, slot: Slot, gpus: Sequence[str], instances: Sequence[MigInstance], card: mig.Card
) -> Repacking | None:
    """Return the moves that empty a slot, or None where its instances cannot all move."""
    on_gpu = [instance for instance in instances if instance.gpu == gpu]
    staying = [instance for instance in on_gpu if not _overlap(instance.slot, slot, card)]
    leaving = [instance for instance in on_gpu if _overlap(instance.slot, slot, card)]
    if not all(instance.movable for instance in leaving) or mig.problem(
        [slot, *(instance.slot for instance in staying)], card
    ):
        return None
    state = {
        name: [instance.slot for instance in instances if instance.gpu == name] for name in gpus
    }
    state[gpu] = [slot, *(instance.slot for instance in staying)]
    # The largest first: it has the fewest places to go.
    profiles = mig.profiles(card)
    leaving.sort(key=lambda instance: (-profiles[instance.slot.profile].memory, instance.id))
    homes = _find_slots(leaving, state, card, [_MOST_STEPS])
    if homes is None:
        return None
    moves = tuple(
        InstanceMove(instance.id, instance.gpu, instance.slot, to_gpu, to_slot)
        for instance, (to_gpu, to_slot) in zip(leaving, homes, strict=True)
    )
    return Repacking(gpu, slot, moves, sum(instance.cost for instance in leaving))


def _find_slots(
    instances: Sequence[MigInstance],
    state: dict[str, list[Slot]],
    card: mig.Card,
    steps_left: list[int],
) -> list[tuple[str, Slot]] | None:
    """Find a slot for each instance by depth-first search; None if there are not enough."""
    if not instances:
        return []
    first, *rest = instances
    for gpu in sorted(state):
        for slot in _slots(first.slot.profile, card):
            steps_left[0] -= 1
            if steps_left[0] < 0:
                return None
            if mig.problem([*state[gpu], slot], card):
                continue
            state[gpu].append(slot)
            homes = _find_slots(rest, state, card, steps_left)
            state[gpu].pop()
            if homes is not None:
                return [(gpu, slot), *homes]
    return None


def _overlap(first: Slot, second: Slot, card: mig.Card) -> bool:
    """Return whether two slots of one GPU share memory slices or its media engines."""
    profiles = mig.profiles(card)
    first_end, second_end = (slot.start + profiles[slot.profile].memory for slot in (first, second))
    both_media = profiles[first.profile].media and profiles[second.profile].media
    return (first.start < second_end and second.start < first_end) or both_media
