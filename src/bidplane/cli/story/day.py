"""
A day on the example fleet: five agents, their work, and its times.

`bidplane demo` plays it at its true scale, in virtual time; `bidplane up --example` in a running
installation, over and over, an hour in `hour` seconds. Times are hours of the day.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import msgspec

from bidplane.cli.story.agents import AgentWork, DemoAgent
from bidplane.node.fleet import Fleet

AGENTS = [
    DemoAgent(name="trainer", priority=4, saves=True),
    DemoAgent(name="research", priority=3, saves=True),
    DemoAgent(name="nightly", priority=2, saves=True),
    DemoAgent(name="studio", priority=1, saves=True),
    DemoAgent(name="chat", priority=6),
]
HOURS = 24


class PlannedWork(msgspec.Struct, frozen=True):
    """`count` pods of `gpus` each, at an hour, for so many hours; worth nothing after `due`."""

    at: float
    agent: str
    task: str
    count: int
    gpus: int
    hours: float
    due: float = HOURS
    pool: str = ""


SCRIPT = [
    PlannedWork(0, "nightly", "embed", 8, 2, 7),
    PlannedWork(1, "trainer", "train", 2, 8, 11),
    PlannedWork(5, "studio", "render", 4, 1, 4, pool="rtx-6000"),
    PlannedWork(7, "research", "sweep", 6, 2, 4),
    PlannedWork(9, "chat", "morning", 2, 2, 3, due=14),
    PlannedWork(11, "research", "grid", 1, 8, 4),
    PlannedWork(12, "chat", "noon", 3, 2, 2, due=15.5),
    PlannedWork(13, "nightly", "index", 6, 2, 5),
    PlannedWork(14, "trainer", "tune", 1, 8, 7),
    PlannedWork(15, "studio", "colour", 4, 1, 3),
    PlannedWork(17, "chat", "evening", 4, 2, 2, due=20.5),
    PlannedWork(18, "research", "check", 3, 4, 3),
]
NARRATION = {
    0: "nightly fills what nobody else wants",
    1: "trainer wants both H100 nodes whole, eight NVLinked GPUs each",
    5: "studio renders, and asks for the cheap cards by name",
    7: "research sweeps: six pods of two GPUs",
    9: "chat has users waiting, and priority 6 to say so; late is lost",
    11: "research wants eight GPUs on one link",
    12: "noon: chat needs more",
    13: "nightly comes back for whatever is left",
    14: "trainer tunes on eight GPUs",
    15: "studio colours: one GPU each, anywhere",
    17: "evening: chat once more",
    18: "research checks its results before the day ends",
}
URGENT = "chat"  # the agent whose work is worth nothing when it is late
NOTICE_SECONDS = 30  # of all pools of the demo


def works(hour: float, suffix: str = "", dice: Random | None = None) -> list[AgentWork]:
    """
    The script as works, an hour of it in `hour` seconds. With `dice`, each work begins up to ten
    minutes later and takes up to a tenth more or less time than the script says.
    """

    def late(entry: PlannedWork) -> float:
        return dice.uniform(0, 1 / 6) if dice is not None and entry.at else 0.0

    def longer() -> float:
        return dice.uniform(0.9, 1.1) if dice is not None else 1.0

    return [
        AgentWork(
            agent=entry.agent,
            name=f"{entry.task}-{number}{suffix}",
            at=(entry.at + late(entry)) * hour,
            gpus=entry.gpus,
            seconds=max(1, round(entry.hours * longer() * hour)),
            due=entry.due * hour,
            pool=entry.pool,
        )
        for entry in SCRIPT
        for number in range(1, entry.count + 1)
    ]


def domains(fleet: Fleet) -> Iterator[tuple[str, int]]:
    """Each link domain: its pool and its number of GPUs."""
    for node in fleet.nodes:
        for domain in node.link_domains():
            yield node.product.lower(), len(domain)


def with_demo_notice(fleet: Fleet) -> Fleet:
    """The fleet with the demo's notice."""
    pools = [msgspec.structs.replace(pool, notice_seconds=NOTICE_SECONDS) for pool in fleet.pools]
    return msgspec.structs.replace(fleet, pools=pools)
