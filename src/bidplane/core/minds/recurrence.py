"""
Recurrence: how likely a service is used in the next ten minutes, learned from when it was before.

Three things are counted, and the likeliest counts: use began at this time of the day on so many of
the last days; at this minute of so many of the last hours; and after a pause as long as this one,
so many pauses ended. A young history counts as little: each share is drawn towards a low one.

Ten minutes that have begun without a request are less likely used. How much less is counted, too:
of the beginnings of use, so many came late in their ten minutes. A job of the clock is never late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec

BIN_SECONDS = 600
_DAY, _HOUR = 86_400 // BIN_SECONDS, 3600 // BIN_SECONDS
KEEP_BINS = 14 * _DAY  # of a history; older use is forgotten


class Period(msgspec.Struct, frozen=True, kw_only=True):
    """A rhythm that use may have: every so many bins, looked back so many times."""

    noun: str
    bins: int
    back: int
    trust: float = 1.0  # in what it says, beside the rhythm of days


PERIODS = (
    Period(noun="days", bins=_DAY, back=10),
    Period(noun="hours", bins=_HOUR, back=24, trust=0.75),
)
_DECAY = 0.9  # of the weight, from one day or hour to the one before
_PRIOR, _PRIOR_WEIGHT = 0.02, 0.5
_LEAST_TIMES = 2  # that use began, before it counts as a rhythm
_LONGEST_PAUSE = 18  # bins that are told apart
_OWN_WEIGHT = 2.0  # pauses of all services that count as much as one's own
_POOLED = (1.0, 20.0)  # the pauses of a fleet that has none yet
_LATE = (9.0, 10.0)  # beginnings, of a fleet that has none yet: at any moment of ten minutes


class Likelihood(msgspec.Struct, frozen=True):
    """How likely use is in a bin, and the history that says so."""

    probability: float
    reason: str = ""
    times: int = 0  # that it came so before
    is_ahead: bool = True  # False of ten minutes that have begun: warming comes too late for them
    late: float = 1.0  # of the beginnings of its use, the share that came late in its ten minutes


class ServiceHistory:
    """The bins in which one service was used, and how its pauses ended."""

    def __init__(self) -> None:
        self.bins: set[int] = set()
        self.first = self.last = -1
        self.reached: Counter[int] = Counter()  # pauses by length, that got so long
        self.ended: Counter[int] = Counter()  # of them, with use in the next bin
        self.beginnings: set[int] = set()  # bins in which use began, early or late: it is known
        self.late: set[int] = set()  # of them, those that began silently

    def began(self, bin: int) -> bool | None:
        """Return True if use began in a bin; None if it went on in it from the bin before."""
        if bin not in self.bins:
            return False
        return None if bin - 1 in self.bins else True


class UseHistory:
    """The histories of all services. Bins are observed in their order."""

    def __init__(self) -> None:
        self.services: dict[str, ServiceHistory] = {}
        self._reached: Counter[int] = Counter()
        self._ended: Counter[int] = Counter()
        self._began_late, self._beginnings = _LATE

    def observe(self, key: str, bin: int, used: bool, *, silent: bool | None = False) -> None:
        """
        Count a bin that is over. `silent`: it began without a request for so long that use might
        have been over; None if that is not known.
        """
        service = self.services.setdefault(key, ServiceHistory())
        if service.first < 0:
            service.first = bin
        pause = min(bin - service.last, _LONGEST_PAUSE)
        if service.last >= 0 and (bin - service.last > 1 or silent):
            for counts in (service.reached, self._reached):
                counts[pause] += 1
            if used:
                for counts in (service.ended, self._ended):
                    counts[pause] += 1
        if used and silent is not None and bin - 1 > service.last >= 0:
            service.beginnings.add(bin)
            self._beginnings += 1
            if silent:
                service.late.add(bin)
                self._began_late += 1
        if used:
            service.bins.add(bin)
            service.last = max(service.last, bin)
        for bins in (service.bins, service.beginnings, service.late):
            bins.discard(bin - KEEP_BINS)

    def likelihood(self, key: str, bin: int, *, silent: bool = False) -> Likelihood:
        """
        Return how likely the service is used in a bin that has not begun, or is not over; in the
        bin after use, once that began silently. `silent`: the bin began so.
        """
        service = self.services.get(key)
        if service is None or service.last < 0:
            return Likelihood(0.0)
        likely = max(
            self._after_pause(service, bin),
            *(_in_rhythm(service, bin, period) for period in PERIODS),
            key=lambda likelihood: likelihood.probability,
        )
        share, probability = self._late_share(service), likely.probability
        if silent and bin - service.last > 1:
            late = share * probability
            probability = late / (1 - probability + late)
        return msgspec.structs.replace(likely, probability=probability, late=share)

    def _late_share(self, service: ServiceHistory) -> float:
        """Return the share of a service's beginnings of use that come after silence in their bin"""
        pooled = self._began_late / self._beginnings
        late, beginnings = len(service.late), len(service.beginnings)
        return (late + _OWN_WEIGHT * pooled) / (beginnings + _OWN_WEIGHT)

    def _after_pause(self, service: ServiceHistory, bin: int) -> Likelihood:
        pause = min(bin - service.last, _LONGEST_PAUSE)
        pooled = (self._ended[pause] + _POOLED[0]) / (self._reached[pause] + _POOLED[1])
        ended, reached = service.ended[pause], service.reached[pause]
        probability = (ended + _OWN_WEIGHT * pooled) / (reached + _OWN_WEIGHT)
        minutes = (pause - 1) * BIN_SECONDS // 60 or 1
        more = " or more" if pause == _LONGEST_PAUSE else ""
        reason = f"{ended} of its {reached} pauses of {minutes} minutes{more} ended soon"
        return Likelihood(probability, reason, ended)


def _in_rhythm(service: ServiceHistory, bin: int, period: Period) -> Likelihood:
    """Return how likely use begins in a bin, from the same bin of earlier days or hours."""
    hits = weights = 0.0
    pattern: list[bool] = []
    for number, began in enumerate(_earlier(service, bin, period)):
        if began is None:
            continue  # it was in use already: no beginning was possible
        weight = _DECAY**number
        weights += weight
        hits += weight * began
        pattern.append(began)
    times = sum(pattern)
    if times < _LEAST_TIMES:
        return Likelihood(0.0)
    probability = (hits + _PRIOR_WEIGHT * _PRIOR) / (weights + _PRIOR_WEIGHT)
    return Likelihood(period.trust * probability, _rhythm_reason(bin, period, pattern), times)


def _rhythm_reason(bin: int, period: Period, pattern: list[bool]) -> str:
    """Return the reason in words, over the stretch up to the oldest beginning."""
    oldest = max(number for number, began in enumerate(pattern) if began)
    stretch = pattern[: oldest + 1]
    minute = bin * BIN_SECONDS // 60 % 1440
    moment = f"{minute // 60:02d}:{minute % 60:02d}"
    if period.bins == _HOUR:
        moment = f"minute {minute % 60}"
    return f"started at {moment} on {_share(sum(stretch), len(stretch))} {period.noun}"


def _share(hits: int, count: int) -> str:
    return f"the last {hits} of {count}"


def _earlier(service: ServiceHistory, bin: int, period: Period) -> Iterator[bool | None]:
    """Yield whether use began in the same bin of each earlier day or hour, the last one first."""
    for number in range(1, period.back + 1):
        earlier = bin - number * period.bins
        if earlier < service.first:
            return
        yield service.began(earlier)
