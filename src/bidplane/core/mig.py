"""
MIG: one GPU cut into parts by the hardware, as its geometry is published.

A geometry says which profiles a GPU is cut into and where each starts. It is configured
first and sold then: it is part of what a lot is, and changes only between rounds, on GPUs
nobody has a part of. Each profile is a leaf with its own count; a whole GPU needs them all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from bidplane.api.money import GPU_WEIGHT
from bidplane.core.chain import Leaf

COMPUTE_SLICES = 7
MEMORY_SLICES = 8


class Profile(msgspec.Struct, frozen=True):
    compute: int  # slices
    memory: int  # slices
    starts: tuple[int, ...]  # the memory slices it may begin at
    media: bool = False  # has the GPU's one set of media engines


# The same on every product; memory slice 7 is only for those that reach it from below.
_PROFILES = (
    Profile(1, 1, (0, 1, 2, 3, 4, 5, 6)),
    Profile(1, 1, (0, 1, 2, 3, 4, 5, 6), media=True),
    Profile(1, 2, (0, 2, 4, 6)),
    Profile(2, 2, (0, 2, 4)),
    Profile(3, 4, (0, 4)),
    Profile(4, 4, (0,)),
    Profile(7, 8, (0,)),
)
# By the whole GPU's gigabytes, what the profiles are called, in the order above.
_GIGABYTES = {
    40: ("1g.5gb", "1g.5gb+me", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"),
    80: ("1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"),
    141: ("1g.18gb", "1g.18gb+me", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"),
    180: ("1g.23gb", "1g.23gb+me", "1g.45gb", "2g.45gb", "3g.90gb", "4g.90gb", "7g.180gb"),
}


# What is known of a card: its gigabytes, by which the table above has its profiles; or these.
Card = int | Mapping[str, Profile]


class BadGeometry(ValueError):
    """A geometry no GPU can have; says which part and why."""


class Slot(msgspec.Struct, frozen=True, order=True):
    """One instance of a geometry."""

    profile: str
    start: int  # the first memory slice


def profiles(card: Card) -> Mapping[str, Profile]:
    """By name, what a card can be cut into; raises BadGeometry."""
    if not isinstance(card, int):
        return card
    if card not in _GIGABYTES:
        known = ", ".join(map(str, _GIGABYTES))
        raise BadGeometry(f"no GPU with {card} GB is known to have MIG; known are {known}")
    return dict(zip(_GIGABYTES[card], _PROFILES, strict=True))


def gigabytes(memory: int) -> int:
    """
    The size a card with so many bytes is sold as: drivers keep some for themselves, and makers
    count in tens. The nearest whole number where no card that can be cut has about as much.
    """
    near = [size for size in _GIGABYTES if 0.9 <= memory / (size * 10**9) <= 1.12]
    return near[0] if near else round(memory / 10**9)


def problem(geometry: Sequence[Slot], card: Card) -> str:
    """Why no such card can be cut like that; "" if one can."""
    known = profiles(card)
    taken: dict[int, Slot] = {}
    compute = media = 0
    for slot in geometry:
        profile = known.get(slot.profile)
        if profile is None:
            return no_profile(slot.profile, card)
        if slot.start not in profile.starts:
            return f"{slot.profile} cannot start at memory slice {slot.start}"
        for at in range(slot.start, slot.start + profile.memory):
            if at in taken:
                other = f"{taken[at].profile} at {taken[at].start}"
                return f"{slot.profile} at {slot.start} and {other} share memory slice {at}"
            taken[at] = slot
        compute += profile.compute
        media += profile.media
    most = max((profile.compute for profile in known.values()), default=0)
    if compute > most:
        return f"the profiles have {compute} compute slices; a GPU has {most}"
    return "only one profile may have the media engines" if media > 1 else ""


def weights(card: Card) -> dict[str, int]:
    """
    By profile, what it is of a GPU's price, in 56ths: the greater of its compute and its memory
    share.
    """
    known = profiles(card)
    compute = max((one.compute for one in known.values()), default=1)
    memory = max((max(one.starts) + one.memory for one in known.values()), default=1)
    return {
        name: max(one.compute * GPU_WEIGHT // compute, one.memory * GPU_WEIGHT // memory)
        for name, one in known.items()
    }


def no_profile(name: str, card: Card) -> str:
    what = f"a GPU with {card} GB" if isinstance(card, int) else "the card"
    return f"{what} has no profile {name!r}; it has {', '.join(profiles(card)) or 'none'}"


def leaves(geometry: Sequence[Slot], card: Card) -> tuple[Leaf, ...]:
    """What a GPU of that geometry sells, the dearest first; raises BadGeometry."""
    wrong = problem(geometry, card)
    if wrong:
        raise BadGeometry(wrong)
    known = profiles(card)
    weight = weights(card)
    names = sorted({slot.profile for slot in geometry}, key=lambda n: (-weight[n], n))
    return tuple(
        Leaf(
            name,
            len(starts := tuple(sorted(s.start for s in geometry if s.profile == name))),
            weight[name],
            in_chain=False,
            starts=starts,
            span=known[name].memory,
        )
        for name in names
    )
