"""
Validation of our annotations on pods. Pure.

An annotation that cannot be read is refused when the pod is created: a job that waits for ever, or
is evicted without its checkpoint, is a worse answer.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Callable, Iterator

from bidplane.api import labels
from bidplane.api.kinds import Object
from bidplane.api.money import parse_amount
from bidplane.api.times import parse_rfc3339

LINKS = ("domain", "machine")
URGENCIES = ("low", "normal", "high")
LONGEST_TERM = 30 * 24 * 3600
_WHOLE = re.compile(r"[0-9]{1,9}")
_DOMAIN = "bidplane.dev/"
_OURS = frozenset(
    text for text in vars(labels).values() if isinstance(text, str) and text.startswith(_DOMAIN)
)
_FOR_USERS = [
    name.removeprefix(_DOMAIN)
    for name in (
        labels.MAX_PRICE,
        labels.POOL,
        labels.LINK,
        labels.BUDGET,
        labels.DEADLINE,
        labels.WORK_SECONDS,
        labels.URGENCY,
        labels.INSTANT,
        labels.TERM,
        labels.PREEMPTIBLE,
        labels.CHECKPOINT_COMMAND,
        labels.BID_NAME,
        labels.GANG,
        labels.GANG_SIZE,
        labels.SIMULATED_SECONDS,
    )
]


def problems(obj: Object) -> Iterator[str]:
    """Yield a sentence for each annotation of ours that is not valid."""
    annotations = obj["metadata"].get("annotations") or {}
    for name, check in _CHECKS.items():
        text = annotations.get(name)
        if text is not None and (problem := check(text)):
            yield f"metadata.annotations[{name}]: {problem}"


def unread(obj: Object) -> Iterator[str]:
    """Yield a warning for each annotation under our domain, of a pod or a template, with no use."""
    for field, metadata in _pod_metadata(obj):
        for name in metadata.get("annotations") or ():
            if name.startswith(_DOMAIN) and name not in _OURS:
                own_part = name.removeprefix(_DOMAIN).lower()
                near = difflib.get_close_matches(own_part, _FOR_USERS, n=1)
                hint = f"; did you mean {_DOMAIN}{near[0]}?" if near else ""
                yield f"{field}.annotations[{name}]: Bidplane has no such annotation{hint}"


def _pod_metadata(obj: Object) -> Iterator[tuple[str, Object]]:
    """Yield the metadata of the object, and of the pod template of a workload, with its field."""
    yield "metadata", obj.get("metadata") or {}
    spec, field = obj.get("spec") or {}, "spec"
    if "jobTemplate" in spec:
        spec, field = (spec["jobTemplate"] or {}).get("spec") or {}, "spec.jobTemplate.spec"
    yield f"{field}.template.metadata", (spec.get("template") or {}).get("metadata") or {}


def deadline_problem(text: str) -> str | None:
    """Return why a text is not a time with its zone; None if it is."""
    try:
        parse_rfc3339(text)
    except ValueError:
        return f'{text!r} is not a time: write it as "2026-11-16T18:00:00Z"'
    return None


def _urgency(text: str) -> str | None:
    return None if text in URGENCIES else f"{text!r} is not one of {', '.join(URGENCIES)}"


def _link(text: str) -> str | None:
    return None if text in LINKS else f"{text!r} is not one of {', '.join(LINKS)}"


def _term(text: str) -> str | None:
    if _WHOLE.fullmatch(text) and 1 <= int(text) <= LONGEST_TERM:
        return None
    return f"{text!r} is not a number of seconds from 1 to {LONGEST_TERM}"


def budget_problem(text: str) -> str | None:
    """Return why a text is not an amount that buys something; None if it is."""
    try:
        return None if parse_amount(text) else f"{text!r} buys nothing: leave it out for no limit"
    except ValueError as error:
        return str(error)


def _yes_or_no(text: str) -> str | None:
    return None if text in ("true", "false") else f'{text!r} is not "true" or "false"'


def _command(text: str) -> str | None:
    try:
        arguments = shlex.split(text)
    except ValueError as error:
        return f"{text!r} cannot be read as a command: {error}"
    return None if arguments else "it is empty: write the command to run on notice, or leave it out"


_CHECKS: dict[str, Callable[[str], str | None]] = {
    labels.DEADLINE: deadline_problem,
    labels.URGENCY: _urgency,
    labels.LINK: _link,
    labels.TERM: _term,
    labels.BUDGET: budget_problem,
    labels.INSTANT: _yes_or_no,
    labels.PREEMPTIBLE: _yes_or_no,
    labels.CHECKPOINT_COMMAND: _command,
}
