"""
Which MIG instances to make, unmake and move.

Instances are made where they take least from what could still be made. When a larger one is
wanted and no GPU has room for it, small ones that may be moved are moved together, if whoever
wants it pays more than the moves cost. What is returned is a plan: others carry it out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from bidplane.core import mig
from bidplane.core.mig import Slot

_MOST_LOOKS = 20_000  # of one search for room; instances are few, so that it is never near


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """One that is there."""

    id: str
    gpu: str
    slot: Slot
    movable: bool = False  # its pod can be started anew elsewhere
    cost: int = 0  # of moving it: what its restart is worth, in micro-credits


class Destroy(msgspec.Struct, frozen=True, tag=True):
    gpu: str
    slot: Slot


class Create(msgspec.Struct, frozen=True, tag=True):
    gpu: str
    slot: Slot


class Move(msgspec.Struct, frozen=True):
    """Its pod ends here and starts there."""

    instance: str
    gpu: str
    slot: Slot
    to_gpu: str
    to_slot: Slot


Operation = Destroy | Create


class Repacking(msgspec.Struct, frozen=True):
    """A proposal: these moves make room for the instance that is wanted."""

    gpu: str
    slot: Slot
    moves: tuple[Move, ...]
    cost: int

    def operations(self) -> Iterator[Operation]:
        """All leave before one arrives: it may go where another was."""
        for move in self.moves:
            yield Destroy(move.gpu, move.slot)
        for move in self.moves:
            yield Create(move.to_gpu, move.to_slot)
        yield Create(self.gpu, self.slot)


class NoRoom(msgspec.Struct, frozen=True):
    reason: str


def changes(
    now: Mapping[str, Sequence[Slot]], wanted: Mapping[str, Sequence[Slot]], card: mig.Card
) -> list[Operation]:
    """From one set of instances to another, room before use; raises `mig.BadGeometry`."""
    for gpu, slots in wanted.items():
        wrong = mig.problem(slots, card)
        if wrong:
            raise mig.BadGeometry(f"{gpu}: {wrong}")
    gone = [
        Destroy(gpu, slot)
        for gpu, slots in sorted(now.items())
        for slot in sorted(set(slots) - set(wanted.get(gpu, ())))
    ]
    made = [
        Create(gpu, slot)
        for gpu, slots in sorted(wanted.items())
        for slot in sorted(set(slots) - set(now.get(gpu, ())))
    ]
    return [*gone, *made]


def place(
    profile: str, gpus: Mapping[str, Sequence[Slot]], card: mig.Card
) -> tuple[str, Slot] | None:
    """Where to make one: the place that leaves most to be made, the first of equals."""
    best: tuple[int, int, str, Slot] | None = None
    for gpu, slots in sorted(gpus.items()):
        before = _potential(slots, card)
        for slot in _slots(profile, card):
            if mig.problem([*slots, slot], card):
                continue
            lost = before - _potential([*slots, slot], card)
            # A GPU that is cut already rather than a whole one.
            candidate = (lost, int(not slots), gpu, slot)
            if best is None or candidate < best:
                best = candidate
    return (best[2], best[3]) if best else None


def _potential(slots: Sequence[Slot], card: mig.Card) -> int:
    """What could still be made, each instance by its weight: a rough measure of what is left."""
    weight = mig.weights(card)
    return sum(
        weight[name]
        for name, profile in mig.profiles(card).items()
        for start in profile.starts
        if not mig.problem([*slots, Slot(name, start)], card)
    )


def _slots(profile: str, card: mig.Card) -> list[Slot]:
    known = mig.profiles(card)
    if profile not in known:
        raise mig.BadGeometry(mig.no_profile(profile, card))
    return [Slot(profile, start) for start in known[profile].starts]


def repack(
    profile: str,
    gpus: Sequence[str],
    instances: Sequence[Instance],
    card: mig.Card,
    *,
    pays: int,
) -> Repacking | NoRoom:
    """
    The cheapest moves that make room for `profile`, if they cost less than it pays.

    Raises `mig.BadGeometry` for a profile these GPUs do not have.
    """
    found = [
        repacking
        for gpu in sorted(gpus)
        for slot in _slots(profile, card)
        if (repacking := _with_room(gpu, slot, gpus, instances, card)) is not None
    ]
    if not found:
        return NoRoom(f"no moves of movable instances make room for a {profile}")
    best = min(found, key=lambda one: (one.cost, len(one.moves), one.gpu, one.slot))
    if best.moves and best.cost >= pays:
        return NoRoom(f"room for a {profile} would cost {best.cost} in restarts; it pays {pays}")
    return best


def _with_room(
    gpu: str, slot: Slot, gpus: Sequence[str], instances: Sequence[Instance], card: mig.Card
) -> Repacking | None:
    here = [one for one in instances if one.gpu == gpu]
    stay = [one for one in here if not _overlap(one.slot, slot, card)]
    away = [one for one in here if _overlap(one.slot, slot, card)]
    if not all(one.movable for one in away) or mig.problem(
        [slot, *(one.slot for one in stay)], card
    ):
        return None
    state = {name: [one.slot for one in instances if one.gpu == name] for name in gpus}
    state[gpu] = [slot, *(one.slot for one in stay)]
    # The largest first: it has the fewest places to go.
    known = mig.profiles(card)
    away.sort(key=lambda one: (-known[one.slot.profile].memory, one.id))
    homes = _homes(away, state, card, [_MOST_LOOKS])
    if homes is None:
        return None
    moves = tuple(
        Move(one.id, one.gpu, one.slot, to, at) for one, (to, at) in zip(away, homes, strict=True)
    )
    return Repacking(gpu, slot, moves, sum(one.cost for one in away))


def _homes(
    away: Sequence[Instance], state: dict[str, list[Slot]], card: mig.Card, looks: list[int]
) -> list[tuple[str, Slot]] | None:
    if not away:
        return []
    first, *rest = away
    for gpu in sorted(state):
        for slot in _slots(first.slot.profile, card):
            looks[0] -= 1
            if looks[0] < 0:
                return None
            if mig.problem([*state[gpu], slot], card):
                continue
            state[gpu].append(slot)
            homes = _homes(rest, state, card, looks)
            state[gpu].pop()
            if homes is not None:
                return [(gpu, slot), *homes]
    return None


def _overlap(one: Slot, other: Slot, card: mig.Card) -> bool:
    known = mig.profiles(card)
    end, other_end = (slot.start + known[slot.profile].memory for slot in (one, other))
    both_media = known[one.profile].media and known[other.profile].media
    return (one.start < other_end and other.start < end) or both_media
