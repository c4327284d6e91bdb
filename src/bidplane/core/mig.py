"""
MIG: one GPU cut into parts by the hardware, as its geometry is published.

A geometry says which profiles a GPU is cut into and where each starts. It is configured
first and sold then: it is part of what a lot is, and changes only between rounds, on GPUs
nobody has a part of. Each profile is a leaf with its own count; a whole GPU needs them all.
"""

from __future__ import annotations

from collections.abc import Sequence

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

    @property
    def weight(self) -> int:
        """Of a GPU's price, in 56ths: the greater of its compute and its memory share."""
        by_compute = self.compute * GPU_WEIGHT // COMPUTE_SLICES
        return max(by_compute, self.memory * GPU_WEIGHT // MEMORY_SLICES)


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


class BadGeometry(ValueError):
    """A geometry no GPU can have; says which part and why."""


class Slot(msgspec.Struct, frozen=True, order=True):
    """One instance of a geometry."""

    profile: str
    start: int  # the first memory slice


def profiles(gigabytes: int) -> dict[str, Profile]:
    """By name, the profiles of a GPU with that much memory; raises BadGeometry."""
    if gigabytes not in _GIGABYTES:
        known = ", ".join(map(str, _GIGABYTES))
        raise BadGeometry(f"no GPU with {gigabytes} GB is known to have MIG; known are {known}")
    return dict(zip(_GIGABYTES[gigabytes], _PROFILES, strict=True))


def problem(geometry: Sequence[Slot], gigabytes: int) -> str:
    """Why no GPU with that much memory can be cut like that; "" if one can."""
    known = profiles(gigabytes)
    taken: dict[int, Slot] = {}
    compute = media = 0
    for slot in geometry:
        profile = known.get(slot.profile)
        if profile is None:
            names = ", ".join(known)
            return f"a GPU with {gigabytes} GB has no profile {slot.profile!r}; it has {names}"
        if slot.start not in profile.starts:
            return f"{slot.profile} cannot start at memory slice {slot.start}"
        for at in range(slot.start, slot.start + profile.memory):
            if at in taken:
                other = f"{taken[at].profile} at {taken[at].start}"
                return f"{slot.profile} at {slot.start} and {other} share memory slice {at}"
            taken[at] = slot
        compute += profile.compute
        media += profile.media
    if compute > COMPUTE_SLICES:
        return f"the profiles have {compute} compute slices; a GPU has {COMPUTE_SLICES}"
    return "only one profile may have the media engines" if media > 1 else ""


def leaves(geometry: Sequence[Slot], gigabytes: int) -> tuple[Leaf, ...]:
    """What a GPU of that geometry sells, the dearest first; raises BadGeometry."""
    wrong = problem(geometry, gigabytes)
    if wrong:
        raise BadGeometry(wrong)
    known = profiles(gigabytes)
    names = sorted({slot.profile for slot in geometry}, key=lambda n: (-known[n].weight, n))
    return tuple(
        Leaf(
            name,
            len(starts := tuple(sorted(s.start for s in geometry if s.profile == name))),
            known[name].weight,
            in_chain=False,
            starts=starts,
            span=known[name].memory,
        )
        for name in names
    )
