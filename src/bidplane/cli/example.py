"""
`bidplane up --example`: a few agents that go on trading, so that there is a market to see.

Five tempers on the example fleet. Their work is drawn from a seed; everything they do is
public API.
"""

from __future__ import annotations

import asyncio
import random

import msgspec

from bidplane.api.kinds import POD
from bidplane.cli.story import NAMESPACE, Cast, Character, Work
from bidplane.core.scheduling import phase_of
from bidplane.errors import ApiError
from bidplane.runtime.installation import Installation

_RETRY_SECONDS = 2.0


class Habit(msgspec.Struct, frozen=True, kw_only=True):
    """How an agent works: `most` pods at a time, each of some size for some time."""

    character: Character
    gpus: tuple[int, ...]
    seconds: tuple[int, int]
    pause: tuple[int, int]  # between two submissions
    most: int


HABITS = [
    Habit(
        character=Character(name="trainer", priority=3, refill="50", price="1.20"),
        gpus=(4, 8),
        seconds=(60, 180),
        pause=(5, 20),
        most=3,
    ),
    Habit(
        character=Character(name="research", priority=2, refill="50", price="0.90"),
        gpus=(1, 2, 4),
        seconds=(30, 90),
        pause=(5, 15),
        most=5,
    ),
    Habit(
        character=Character(name="nightly", priority=1, refill="20", price="0.60"),
        gpus=(1, 2),
        seconds=(40, 120),
        pause=(3, 10),
        most=6,
    ),
    Habit(
        character=Character(name="studio", priority=2, refill="20", price="0.35"),
        gpus=(1, 2),
        seconds=(20, 60),
        pause=(4, 12),
        most=4,
    ),
    Habit(
        character=Character(name="chat", priority=8, refill="50", price="5.00"),
        gpus=(1, 2),
        seconds=(10, 30),
        pause=(10, 30),
        most=2,
    ),
]


async def keep_trading(where: Installation) -> None:
    """Until cancelled."""
    cast = Cast(where)
    try:
        for habit in HABITS:
            await cast.enter(habit.character)
        async with asyncio.TaskGroup() as group:
            for seed, habit in enumerate(HABITS):
                group.create_task(_work(cast, habit, random.Random(seed)))
    finally:
        await cast.leave()


async def _work(cast: Cast, habit: Habit, dice: random.Random) -> None:
    name = habit.character.name
    number = dice.randrange(10**6)
    while True:
        try:
            busy = await _tidy(cast, name)
            if busy < habit.most:
                number += 1
                await cast.submit(
                    Work(
                        agent=name,
                        name=f"{name}-{number}",
                        at=0,
                        gpus=dice.choice(habit.gpus),
                        seconds=dice.randint(*habit.seconds),
                    )
                )
            await asyncio.sleep(dice.randint(*habit.pause))
        except ApiError:
            # The server restarts, or an old name comes back: neither is worth a word.
            await asyncio.sleep(_RETRY_SECONDS)


async def _tidy(cast: Cast, agent: str) -> int:
    """Remove the pods that are done; returns how many are not."""
    busy = 0
    for pod in (await cast.client(agent).list(POD, NAMESPACE)).items:
        if phase_of(pod) in ("Succeeded", "Failed"):
            await cast.forget(agent, pod["metadata"]["name"])
        else:
            busy += 1
    return busy
