"""
The parts of a cold start: bid, bind, start, load and probe. Pure.

The endpoint controller notes when the first pod of a demand reaches a milestone, as it sees it; the
activator, which knows when the request came and when a pod answered, makes the parts of these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from bidplane.api.bid import BidReason
from bidplane.api.endpoint import ColdStart, Milestones
from bidplane.api.objects import condition_of
from bidplane.api.times import parse_rfc3339, rfc3339_micro
from bidplane.api.views import Pod

_Seconds = float


def passed(
    previous: Milestones,
    number: int,
    pods: Sequence[Pod],
    addresses: Mapping[str, str],
    *,
    now: _Seconds,
) -> Milestones:
    """
    Return the milestones that the pods of a demand have passed; those of an earlier demand go.

    `addresses` are those of the pods that have one.
    """
    milestones = previous if previous.number == number else Milestones(number=number)
    is_bound = any(pod.node_name for pod in pods)
    has_address = any(addresses.get(pod.name) for pod in pods)
    reached = {
        "won": is_bound or any(map(_has_won, pods)),
        "bound": is_bound,
        "started": has_address,
    }
    time = rfc3339_micro(now)
    new = {name: time for name, is_reached in reached.items() if is_reached}
    return msgspec.structs.replace(
        milestones,
        **{name: time for name, time in new.items() if not getattr(milestones, name)},
    )


def _has_won(pod: Pod) -> bool:
    condition = condition_of(pod, "PodScheduled")
    return condition is not None and condition.get("reason") == BidReason.WON


def cold_start(
    milestones: Milestones, *, since: _Seconds, probed: _Seconds, answered: _Seconds
) -> ColdStart:
    """
    Return how long each part took, from the request at `since` until a pod answered.

    The first probe began at `probed`. A milestone that nobody saw, or that is out of order by the
    clock of another process, takes no time of its own: the parts always add up to the whole.
    """
    parts: list[int] = []
    at, total = since, 0
    for moment in (*map(_seconds, _texts(milestones)), probed, answered):
        at = min(max(at, moment), answered)
        elapsed = round((at - since) * 1000)
        parts.append(elapsed - total)
        total = elapsed
    bid, bind, start, load, probe = parts
    return ColdStart(total=total, bid=bid, bind=bind, start=start, load=load, probe=probe)


def _texts(milestones: Milestones) -> tuple[str, str, str]:
    return milestones.won, milestones.bound, milestones.started


def _seconds(text: str) -> _Seconds:
    return parse_rfc3339(text) if text else 0.0
