"""The digest for people: what was done, what was refused, what waits, in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from bidplane.api.gate.action import ActionKind, Effect
from bidplane.api.money import format_credits


class DigestLine(msgspec.Struct, frozen=True, kw_only=True):
    """One change, with the newest that is known of it."""

    at: str
    actor: str
    summary: str
    message: str
    effect: Effect = Effect()
    kind: str = ""
    proposal: str = ""


class Digest(msgspec.Struct, frozen=True, kw_only=True):
    since: str
    until: str
    done: Sequence[DigestLine] = ()
    refused: Sequence[DigestLine] = ()
    waiting: Sequence[DigestLine] = ()
    failed: Sequence[DigestLine] = ()


def markdown(digest: Digest) -> str:
    """Return the digest as a page; a section without entries says so."""
    parts = [f"# Changes from {digest.since} to {digest.until}", ""]
    for title, lines in (
        ("Waiting for you", digest.waiting),
        ("Done", digest.done),
        ("Refused", digest.refused),
        ("Failed", digest.failed),
    ):
        parts += [f"## {title} ({len(lines)})", ""]
        parts += [_line(line) for line in lines] or ["nothing"]
        parts.append("")
    return "\n".join([*parts, "## Saved", "", saved(digest.done), ""])


def saved(done: Iterable[DigestLine]) -> str:
    """Return what was given back: rents that ended, and devices that were parked."""
    rent = devices = parked = freed = 0
    for line in done:
        if line.kind in (ActionKind.RELEASE_LEASE, ActionKind.SLEEP_ENDPOINT):
            rent += line.effect.spend
            devices += line.effect.devices
        if line.kind == ActionKind.PARK_NODE:
            parked += line.effect.devices
        freed += line.kind == ActionKind.CONSOLIDATE_NODE
    if not any((rent, devices, parked, freed)):
        return "nothing"
    return (
        f"{devices} devices given back, with rents of {format_credits(rent)} credits per hour;"
        f" {parked} devices parked" + (f"; nodes freed: {freed}" if freed else "")
    )


def _line(line: DigestLine) -> str:
    decide = f" (`bidplane proposals show {line.proposal}`)" if line.proposal else ""
    actor, summary, message = map(_plain, (line.actor, line.summary, line.message))
    return f"- {line.at} {actor}: {summary}: {message}{decide}"


def _plain(text: str) -> str:
    """Return text that others wrote without what Markdown or a terminal would act on."""
    printable = "".join(c if c.isprintable() else " " for c in text)
    return printable.translate({ord(c): "\\" + c for c in "\\`*_[]<>#|"})
