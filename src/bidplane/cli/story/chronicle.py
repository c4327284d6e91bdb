"""
The narration of the demo's day.

It tells the script's own lines, displacements and returns, how long urgent work waited, and every
few hours the prices and the GPUs of each agent. Other starts and ends are not told.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from typing import NamedTuple

from bidplane.api.money import MICRO, parse_credits
from bidplane.cli.story.day import AGENTS, HOURS, NARRATION, URGENT
from bidplane.sim.day import DayEvent, JobDisplaced, JobDone, JobStarted, MarketDay

WIDTH = 80
_MARGIN = 16  # the hour, and the agent
_HOUR = 3600
_PRICES_EVERY = 3 * _HOUR
_GATHERED = 360  # seconds: like events within it are told in one line

# Takes the second of the day, a line and its style.
Say = Callable[[int, str, str], None]


class StoryNote(NamedTuple):
    """The text of an event worth telling. Jobs with the same note share a line."""

    agent: str
    text: str
    style: str


class Narrator:
    """Tells the events of a day, one line after the other."""

    def __init__(self, played: MarketDay, say: Say) -> None:
        self._played, self._say = played, say
        self._notes: dict[StoryNote, list[str]] = {}
        self._gathering_since = 0
        self._told = -1  # the last whole hour whose script line was told
        self._market_at = _PRICES_EVERY // 2
        self.displacements = 0
        self.urgent_waits: list[int] = []  # seconds, from submission to the first start
        self.done: dict[str, int] = {}  # by job: when

    def run(self) -> None:
        """Play the whole day and tell it."""
        for event in self._played.play():
            self._advance(event.at)
            self._tell(event)
        self._advance(HOURS * _HOUR)
        self._flush()

    def line(self, at: int, speaker: str, text: str, style: str = "") -> None:
        """Say a line, wrapped, with the time of day and the speaker."""
        first = f"{at // _HOUR:02}:{at % _HOUR // 60:02}  {speaker:<9}"
        for part in textwrap.wrap(text, WIDTH - _MARGIN):
            self._say(at, f"{first:<{_MARGIN}}{part}", style)
            first = ""

    def _advance(self, now: int) -> None:
        """Tell what the script and the market have to say up to now."""
        speaks = now >= min(self._market_at, _HOUR * (self._told + 1))
        if self._notes and (speaks or now > self._gathering_since + _GATHERED):
            self._flush()
        while self._told < min(now // _HOUR, HOURS - 1):
            self._told += 1
            if self._told in NARRATION:
                self.line(self._told * _HOUR, "", NARRATION[self._told], "bold")
        if now >= self._market_at:
            self._market_at += _PRICES_EVERY * (1 + (now - self._market_at) // _PRICES_EVERY)
            prices = "  ".join(
                f"{pool} {parse_credits(price) / MICRO:.2f}"
                for pool, price in self._played.prices.items()
            )
            self.line(now, "market", prices, "cyan")
            in_use = self._played.gpus_in_use
            usage = [
                f"{agent.name} {in_use[agent.name]}" for agent in AGENTS if agent.name in in_use
            ]
            self.line(now, "GPUs", ", ".join(usage) or "none in use", "cyan")

    def _tell(self, event: DayEvent) -> None:
        """Record an event, and note what is worth telling of it."""
        for text, style in self._texts(event):
            if not self._notes:
                self._gathering_since = event.at
            note = StoryNote(event.job.agent, text, style)
            self._notes.setdefault(note, []).append(event.job.name)

    def _texts(self, event: DayEvent) -> Iterator[tuple[str, str]]:
        job = event.job
        match event:
            case JobDone():
                self.done[job.name] = event.at
            case JobDisplaced():
                self.displacements += 1
                reason = "outbid, compensated" if event.outbid else "out of credits"
                yield f"{reason}, bids again", "yellow"
            case JobStarted() if event.is_restart:
                restart_point = "its checkpoint" if job.saves else "the start"
                yield f"GPUs again, from {restart_point}", "green"
            case JobStarted() if job.agent == URGENT:
                self.urgent_waits.append(event.at - job.at)
                yield f"GPUs after {event.at - job.at} s", "green"

    def _flush(self) -> None:
        """Say the notes that were gathered."""
        notes, self._notes = self._notes, {}
        for note, jobs in notes.items():
            self.line(
                self._gathering_since, note.agent, f"{', '.join(jobs)}: {note.text}", note.style
            )
