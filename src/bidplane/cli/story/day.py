"""
A day on the example fleet: five agents, their work, and its times.

`bidplane demo` plays it in a minute, `bidplane up --example` over and over. Times are hours of the
day; `hour` is how many seconds one of them takes.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from bidplane.cli.story.agents import AgentWork, DemoAgent
from bidplane.node.fleet import Fleet

AGENTS = [
    DemoAgent(name="trainer", priority=3, refill="50", price="1.20", saves=True),
    DemoAgent(name="research", priority=2, refill="50", price="0.90"),
    DemoAgent(name="nightly", priority=1, refill="20", price="0.60", saves=True),
    DemoAgent(name="studio", priority=2, refill="20", price="0.35"),
    DemoAgent(name="chat", priority=8, refill="50", price="5.00"),
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
    0: "nightly fills what nobody else wants, at 0.60 a GPU-hour",
    1: "trainer wants both H100 nodes whole, eight NVLinked GPUs each",
    5: "studio renders, and asks for the cheap cards by name",
    7: "research sweeps: six pods of two GPUs, at 0.90",
    9: "chat has users waiting, and 5.00 to say so; late is lost",
    11: "research wants eight GPUs on one link; a queue would block here",
    12: "noon: chat needs more",
    13: "nightly comes back for whatever is left",
    14: "trainer tunes on eight GPUs",
    15: "studio colours: one GPU each, anywhere",
    17: "evening: chat once more",
    18: "research checks its results before the day ends",
}
NOTICE_SECONDS = 3  # in the demo, where an hour takes two


def works(hour: float, suffix: str = "") -> list[AgentWork]:
    """The script as works, an hour of it in `hour` seconds."""
    return [
        AgentWork(
            agent=entry.agent,
            name=f"{entry.task}-{number}{suffix}",
            at=entry.at * hour,
            gpus=entry.gpus,
            seconds=max(1, round(entry.hours * hour)),
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


def with_short_notice(fleet: Fleet) -> Fleet:
    """The fleet with a notice in proportion to the demo's hours."""
    pools = [
        msgspec.structs.replace(pool, notice_seconds=NOTICE_SECONDS, restart_seconds=NOTICE_SECONDS)
        for pool in fleet.pools
    ]
    return msgspec.structs.replace(fleet, pools=pools)
