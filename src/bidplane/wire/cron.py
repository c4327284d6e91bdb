"""
Cron schedules: `*/5 8-18 * * mon-fri`, `@daily`, `@every 1h30m`.

Days of the month and of the week are joined by "or" when both are restricted, as cron has
always done.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import msgspec

_NAMED = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_UNITS = {"h": 3600, "m": 60, "s": 1}
_EVERY = re.compile(r"(?:[0-9]+[hms])+")
_LONGEST_DAYS = 5 * 366  # a schedule with no time in five years has none


class CronSchedule(msgspec.Struct, frozen=True, kw_only=True):
    minutes: frozenset[int] = frozenset()
    hours: frozenset[int] = frozenset()
    days: frozenset[int] = frozenset()
    months: frozenset[int] = frozenset()
    weekdays: frozenset[int] = frozenset()
    either_day: bool = False  # both kinds of day are restricted: one is enough
    every_seconds: int = 0

    def after(self, moment: float, zone: str = "UTC") -> float | None:
        """Return the first time later than `moment`; None if there is none."""
        if self.every_seconds:
            return float(int(moment) + self.every_seconds)
        tz = ZoneInfo(zone)
        at = datetime.fromtimestamp(int(moment) // 60 * 60 + 60, tz)
        last = at + timedelta(days=_LONGEST_DAYS)
        while at <= last:
            if at.month not in self.months or not self._fits_day(at):
                at = _at(at.replace(hour=0, minute=0) + timedelta(days=1), tz)
            elif at.hour not in self.hours:
                # By the clock that runs on: an hour the wall clock skips is skipped.
                later = at.timestamp() + 3600 - at.minute * 60
                at = datetime.fromtimestamp(later, tz)
            elif at.minute not in self.minutes:
                at = datetime.fromtimestamp(at.timestamp() + 60, tz)
            else:
                return at.timestamp()
        return None

    def _fits_day(self, at: datetime) -> bool:
        day = at.day in self.days
        weekday = at.isoweekday() % 7 in self.weekdays
        return (day or weekday) if self.either_day else (day and weekday)


def _at(wall: datetime, tz: ZoneInfo) -> datetime:
    return datetime.fromtimestamp(wall.timestamp(), tz)


def parse(text: str) -> CronSchedule:
    """Parse a schedule; raises `ValueError`."""
    text = text.strip()
    if text.startswith("@every "):
        return CronSchedule(every_seconds=_duration(text.removeprefix("@every ").strip()))
    fields = _NAMED.get(text, text).split()
    if len(fields) != 5:
        raise ValueError(f"expected exactly 5 fields, found {len(fields)}: [{' '.join(fields)}]")
    minutes, hours, days, months, weekdays = fields
    return CronSchedule(
        minutes=_field(minutes, 0, 59),
        hours=_field(hours, 0, 23),
        days=_field(days, 1, 31),
        months=_field(months, 1, 12, _MONTHS),
        weekdays=frozenset(day % 7 for day in _field(weekdays, 0, 7, _DAYS)),
        either_day=days[0] not in "*?" and weekdays[0] not in "*?",
    )


def _duration(text: str) -> int:
    if not _EVERY.fullmatch(text):
        raise ValueError(f"{text!r} is no duration: write it like 1h30m")
    parts = re.findall(r"([0-9]+)([hms])", text)
    total = sum(int(number) * _UNITS[unit] for number, unit in parts)
    if not total:
        raise ValueError("the duration must be longer than 0")
    return total


def _field(text: str, low: int, high: int, names: tuple[str, ...] = ()) -> frozenset[int]:
    numbers: set[int] = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        if span in ("*", "?"):
            first, last = low, high
        else:
            begin, dash, end = span.partition("-")
            first = _number(begin, low, names)
            last = _number(end, low, names) if dash else (high if step else first)
        if not low <= first <= last <= high:
            raise ValueError(f"{part!r} is not within {low}-{high}")
        every = int(step) if step.isdecimal() else (0 if step else 1)
        if not every:
            raise ValueError(f"{part!r}: the step must be a number above 0")
        numbers.update(range(first, last + 1, every))
    return frozenset(numbers)


def _number(text: str, low: int, names: tuple[str, ...]) -> int:
    if text.lower() in names:
        return names.index(text.lower()) + (1 if len(names) == 12 else 0)
    if not text.isdecimal():
        raise ValueError(f"{text!r} is not a number")
    return int(text)
