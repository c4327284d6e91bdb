"""`bidplane audit …`: verify, show and export what the gate recorded. Only reads."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import App, Parameter

from bidplane.api.money import format_credits
from bidplane.api.objects import Fields
from bidplane.api.times import rfc3339_ms
from bidplane.cli.account.ledger import LedgerOption, ledger_location
from bidplane.cli.common import Data, Json, console, print_json, print_table
from bidplane.core.gate.digest import markdown
from bidplane.errors import UserError
from bidplane.ledger.audit.check import verify_audit
from bidplane.ledger.audit.summary import digest_of
from bidplane.ledger.audit.trail import AuditEntry, AuditTrail
from bidplane.ledger.stores import open_store
from bidplane.machinery.clock import SystemClock

app = App(name="audit", help="The audit: verdicts, approvals and outcomes, chained by hash.")

_PAGE = 1000  # entries


def open_audit(ledger: str, data: Path | None) -> AuditTrail:
    return AuditTrail(open_store(ledger_location(ledger, data), read_only=True))


@app.command
def verify(*, ledger: LedgerOption = "", json: Json = False, data: Data = None) -> None:
    """
    Replay the whole chain; exit code 1 if an entry was changed, removed or put in.

    What was cut off at the end shows in the head alone: keep a copy of it elsewhere.

    For example:
        bidplane audit verify
    """
    store = open_store(ledger_location(ledger, data), read_only=True)
    try:
        report = verify_audit(store)
    finally:
        store.close()
    if json:
        print_json({"sound": report.is_sound, **msgspec.to_builtins(report)})
        sys.exit(0 if report.is_sound else 1)
    if not report.is_sound:
        console.print(f"the audit is broken: {report.problem}", style="bold red", soft_wrap=True)
        sys.exit(1)
    console.print(
        f"the audit is sound: {report.entries} entries, {report.verdicts} verdicts,"
        f" {report.outcomes} outcomes, {report.unfinished} unfinished; head {report.head[:16]}"
    )


@app.command
def show(
    *,
    last: Annotated[int, Parameter(help="How many entries, the newest.")] = 50,
    subject: Annotated[
        str, Parameter(help="Only of this Proposal's uid, or of this request.")
    ] = "",
    ledger: LedgerOption = "",
    json: Json = False,
    data: Data = None,
) -> None:
    """
    Show the newest entries, the oldest of them first. What was refused is among them.

    For example:
        bidplane audit show --last 20
    """
    if last < 1:
        raise UserError(f"--last must be at least 1, not {last}")
    trail = open_audit(ledger, data)
    try:
        if subject:
            entries = list(trail.subject(subject).entries)[-last:]
        else:
            head = trail.head
            entries = trail.entries(after_sequence=(head.sequence if head else 0) - last)
    finally:
        trail.close()
    if json:
        print_json([describe(entry) for entry in entries])
        return
    rows = [
        [
            str(entry.sequence),
            rfc3339_ms(entry.at),
            entry.event,
            f"{entry.role} {entry.actor}",
            f"{entry.action} {entry.target}",
            entry.reason,
            entry.policy,
        ]
        for entry in entries
    ]
    print_table(["no", "at", "event", "by", "action", "reason", "policy"], rows, right="no")


@app.command
def export(
    *,
    output: Annotated[
        Path | None, Parameter(help="The file to write; else standard output.")
    ] = None,
    ledger: LedgerOption = "",
    data: Data = None,
) -> None:
    """
    Write every entry as a line of JSON, with its hash.

    For example:
        bidplane audit export --output audit.jsonl
    """
    trail = open_audit(ledger, data)
    try:
        if output is None:
            _write_lines(trail, sys.stdout.buffer.write)
            return
        new_file = output.with_name(output.name + ".new")  # renamed when complete
        with new_file.open("wb") as out:
            _write_lines(trail, out.write)
        new_file.replace(output)
    except OSError as error:
        raise UserError(f"cannot write {output}: {error.strerror}") from error
    finally:
        trail.close()


@app.command
def digest(
    *,
    last: Annotated[str, Parameter(help="How far back, as 24h or 7d.")] = "24h",
    ledger: LedgerOption = "",
    json: Json = False,
    data: Data = None,
) -> None:
    """
    Write what was done, refused and saved, and what waits for somebody, in Markdown.

    For example:
        bidplane audit digest > digest.md
    """
    now = SystemClock().now()
    trail = open_audit(ledger, data)
    try:
        summary = digest_of(trail, since=now - duration("--last", last), now=now)
    finally:
        trail.close()
    if json:
        print_json(summary)
        return
    print(markdown(summary))


_DURATION = re.compile(r"([0-9]{1,6})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def duration(option: str, text: str) -> int:
    """Return the seconds in a duration such as 30m; raise `UserError` for what is none."""
    match = _DURATION.fullmatch(text)
    if match is None or not int(match[1]):
        raise UserError(f"{option} {text!r}: write a number and s, m, h or d, as 30m")
    return int(match[1]) * _SECONDS[match[2]]


def _write_lines(trail: AuditTrail, write: Callable[[bytes], object]) -> None:
    number = 0
    while entries := trail.entries(after_sequence=number, limit=_PAGE):
        for entry in entries:
            write(msgspec.json.encode(describe(entry)) + b"\n")
        number = entries[-1].sequence


def describe(entry: AuditEntry) -> Fields:
    """Return an entry for people and programs: times and amounts as they write them."""
    effect = {
        "devices": entry.devices,
        "pods": entry.pods,
        "agents": entry.agents,
        "spendPerHour": format_credits(entry.spend),
    }
    return {
        "sequence": entry.sequence,
        "at": rfc3339_ms(entry.at),
        "event": entry.event,
        "subject": entry.subject,
        "actor": entry.actor,
        "role": entry.role,
        "action": entry.action,
        "target": entry.target,
        "digest": entry.digest,
        "reason": entry.reason,
        "message": entry.message,
        "policy": entry.policy,
        "effect": effect,
        "detail": msgspec.json.decode(entry.detail),
        "hash": entry.hash.hex(),
    }
