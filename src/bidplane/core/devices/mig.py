"""
MIG: one GPU cut into parts by the hardware, by its published geometry.

A geometry lists the profiles that a GPU is cut into and where each starts. It is configured first
and sold then: it is a property of a lot, and changes only between rounds, on GPUs of which no part
is leased. Each profile is a leaf with its own count; a whole GPU needs them all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from bidplane.api.money import GPU_WEIGHT
from bidplane.core.devices.chain import Leaf

COMPUTE_SLICES = 7
MEMORY_SLICES = 8


class Profile(msgspec.Struct, frozen=True):
    """The size of an instance in slices, and the places where it may start."""

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
# The names of the profiles above, in that order, by the gigabytes of the whole GPU.
_GIGABYTES = {
    40: ("1g.5gb", "1g.5gb+me", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"),
    80: ("1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"),
    141: ("1g.18gb", "1g.18gb+me", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"),
    180: ("1g.23gb", "1g.23gb+me", "1g.45gb", "2g.45gb", "3g.90gb", "4g.90gb", "7g.180gb"),
}


# A card: its gigabytes, which find its profiles in the table above; or the profiles themselves.
Card = int | Mapping[str, Profile]


class BadGeometry(ValueError):
    """A geometry that no GPU can have. The message names the part and the reason."""


class Slot(msgspec.Struct, frozen=True, order=True):
    """One instance of a geometry."""

    profile: str
    start: int  # the first memory slice


def profiles(card: Card) -> Mapping[str, Profile]:
    """Return the profiles that a card can be cut into, by name; raises `BadGeometry`."""
    if not isinstance(card, int):
        return card
    if card not in _GIGABYTES:
        sizes = ", ".join(map(str, _GIGABYTES))
        raise BadGeometry(f"no GPU with {card} GB is known to have MIG; known sizes are {sizes} GB")
    return dict(zip(_GIGABYTES[card], _PROFILES, strict=True))


def gigabytes(memory: int) -> int:
    """
    Return the nominal size of a card with so many bytes, which drivers and makers count
    differently.

    The nearest whole number if no card with MIG is of about that size.
    """
    matching_sizes = [size for size in _GIGABYTES if 0.9 <= memory / (size * 10**9) <= 1.12]
    return matching_sizes[0] if matching_sizes else round(memory / 10**9)


def problem(geometry: Sequence[Slot], card: Card) -> str:
    """Return why a card cannot be cut into these instances; "" if it can."""
    card_profiles = profiles(card)
    slot_at: dict[int, Slot] = {}
    compute = media = 0
    for slot in geometry:
        profile = card_profiles.get(slot.profile)
        if profile is None:
            return no_profile(slot.profile, card)
        if slot.start not in profile.starts:
            return f"{slot.profile} cannot start at memory slice {slot.start}"
        for memory_slice in range(slot.start, slot.start + profile.memory):
            if memory_slice in slot_at:
                other = f"{slot_at[memory_slice].profile} at {slot_at[memory_slice].start}"
                return (
                    f"{slot.profile} at {slot.start} and {other} share memory slice {memory_slice}"
                )
            slot_at[memory_slice] = slot
        compute += profile.compute
        media += profile.media
    card_compute = max((profile.compute for profile in card_profiles.values()), default=0)
    if compute > card_compute:
        return f"the profiles have {compute} compute slices; a GPU has {card_compute}"
    return "only one profile may have the media engines" if media > 1 else ""


def weights(card: Card) -> dict[str, int]:
    """
    Return the part of a GPU's price that each profile costs.

    It is the greater of the profile's compute share and its memory share.
    """
    card_profiles = profiles(card)
    compute = max((profile.compute for profile in card_profiles.values()), default=1)
    memory = max(
        (max(profile.starts) + profile.memory for profile in card_profiles.values()), default=1
    )
    return {
        name: max(profile.compute * GPU_WEIGHT // compute, profile.memory * GPU_WEIGHT // memory)
        for name, profile in card_profiles.items()
    }


def no_profile(name: str, card: Card) -> str:
    """Return the message for a profile that a card does not have."""
    owner = f"a GPU with {card} GB" if isinstance(card, int) else "the card"
    return f"{owner} has no profile {name!r}; it has {', '.join(profiles(card)) or 'none'}"


def leaves(geometry: Sequence[Slot], card: Card) -> tuple[Leaf, ...]:
    """Return what a GPU with that geometry sells, the dearest first; raises `BadGeometry`."""
    reason = problem(geometry, card)
    if reason:
        raise BadGeometry(reason)
    card_profiles = profiles(card)
    weight = weights(card)
    names = sorted({slot.profile for slot in geometry}, key=lambda n: (-weight[n], n))
    return tuple(
        Leaf(
            name,
            len(starts := tuple(sorted(s.start for s in geometry if s.profile == name))),
            weight[name],
            in_chain=False,
            starts=starts,
            span=card_profiles[name].memory,
        )
        for name in names
    )
