"""`bidplane report …`: cost reports."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from html import escape
from pathlib import Path
from typing import IO, Annotated, Literal

import msgspec
from cyclopts import App, Parameter

from bidplane.api.money import MICRO, format_credits
from bidplane.cli.account.ledger import LedgerOption, ledger_location
from bidplane.cli.common import Data, console, print_table
from bidplane.errors import UserError
from bidplane.ledger.records import Account
from bidplane.ledger.reports.chargeback import Chargeback, Share
from bidplane.ledger.reports.chargeback import chargeback as add_up
from bidplane.ledger.stores import open_store

app = App(name="report", help="Cost reports.")

_UNKNOWN = "(not known)"  # for agents that were gone before the ledger recorded it
_COLOURS = ("#2a7de1", "#e1812a", "#3aa655", "#b0413e", "#7a5ab5", "#9aa5b1")


@app.command
def chargeback(
    *,
    by: str = "agent",
    begin: Annotated[str, Parameter(name="--from")] = "",
    end: Annotated[str, Parameter(name="--to")] = "",
    format: Literal["table", "csv", "html"] = "table",
    output: Path | None = None,
    credits_per_currency: str = "",
    currency: str = "EUR",
    ledger: LedgerOption = "",
    data: Data = None,
) -> None:
    """
    Report what was paid for GPU time, and by whom; matches the ledger to the micro-credit.

    For example:
        bidplane report chargeback --by team --from 2026-11-01 --to 2026-12-01
        bidplane report chargeback --by agent,label:project --format html --output bill.html

    Args:
        by: agent, team, owner, label:KEY (of the Agent), or several, with commas.
        begin: The first day or time (UTC); else the beginning.
        end: The end, a day or time that is not included; else now.
        format: table, csv, or html with a plot.
        output: The file to write; else it is printed.
        credits_per_currency: The credits per unit of currency; costs are then shown in money, too.
        currency: The currency's name.
    """
    rate = _rate(credits_per_currency)
    columns = [column.strip() for column in by.split(",")]
    first, last = _time("--from", begin, 0), _time("--to", end, 2**62)
    if first >= last:
        raise UserError("--from must be before --to")
    store = open_store(ledger_location(ledger, data), read_only=True)
    try:
        charges = add_up(store, begin=first, end=last, group=grouping(columns), day=_day)
    finally:
        store.close()
    if charges.total != charges.received:
        raise UserError("the ledger does not add up: see `bidplane ledger verify`")
    _write(charges, columns, format, output, rate, currency, _period(begin, end))


def grouping(columns: Sequence[str]) -> Callable[[Account], tuple[str, ...]]:
    """A function that returns the group of a wallet, by the columns of `--by`."""
    for column in columns:
        if column not in ("agent", "team", "owner") and not column.startswith("label:"):
            raise UserError(f"--by {column!r}: use agent, team, owner or label:KEY")

    def group(account: Account) -> tuple[str, ...]:
        return tuple(_value(column, account) for column in columns)

    return group


def _value(column: str, account: Account) -> str:
    """A wallet's value in one column."""
    if column == "agent":
        return account.name
    if column == "owner":
        return account.owner
    if not account.marks:
        return _UNKNOWN
    if column == "team":
        return account.team or "(none)"
    agent_labels = msgspec.json.decode(account.marks, type=dict[str, str])
    return agent_labels.get(column.removeprefix("label:"), "(none)")


def _time(option: str, text: str, default: int) -> int:
    if not text:
        return default
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise UserError(f"{option} {text!r}: write a day, as 2026-11-01, or a time") from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def _rate(text: str) -> Decimal | None:
    if not text:
        return None
    try:
        rate = Decimal(text)
    except InvalidOperation:
        rate = Decimal(0)
    if not rate.is_finite() or rate <= 0:
        raise UserError(f"--credits-per-currency {text!r}: write a number above zero")
    return rate


def _day(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).date().isoformat()


def _period(begin: str, end: str) -> str:
    return f"{begin or 'the beginning'} to {end or 'now'}"


def _money(micro: int, rate: Decimal) -> str:
    return f"{Decimal(micro) / MICRO / rate:.2f}"


def table_rows(
    charges: Chargeback, columns: Sequence[str], rate: Decimal | None, currency: str
) -> tuple[list[str], list[list[str]]]:
    """The header and the rows of the report."""
    head = ["leases", "rent", "levy", "preempted", "compensated", "net"]
    head += [currency] if rate else []

    def row(names: Sequence[str], shares: Sequence[Share]) -> list[str]:
        net = sum(s.net for s in shares)
        cells = [
            str(sum(s.leases for s in shares)),
            *(
                format_credits(sum(getattr(s, field) for s in shares))
                for field in ("rent", "levy", "preemption", "compensation", "net")
            ),
        ]
        return [*names, *cells, *([_money(net, rate)] if rate else [])]

    rows = [row(share.group, [share]) for share in charges.shares]
    rows.append(row(["total", *[""] * (len(columns) - 1)], charges.shares))
    return head, rows


def _write(
    charges: Chargeback,
    columns: Sequence[str],
    format: str,
    output: Path | None,
    rate: Decimal | None,
    currency: str,
    period: str,
) -> None:
    """Print the report or write it to a file."""
    head, rows = table_rows(charges, columns, rate, currency)
    if format == "table" and output is None:
        print_table([*columns, *head], rows, right=" ".join(head))
        console.print(f"{period}; credits; equal to the ledger's receipts", style="dim")
        return
    if output is None:
        _write_to(sys.stdout, charges, columns, head, rows, format, period)
        return
    try:
        with output.open("w", newline="") as out:
            _write_to(out, charges, columns, head, rows, format, period)
    except OSError as error:
        raise UserError(f"cannot write {output}: {error.strerror}") from error
    console.print(
        f"{output} has {len(charges.shares)} lines, {format_credits(charges.total)} in all"
    )


def _write_to(
    out: IO[str],
    charges: Chargeback,
    columns: Sequence[str],
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    format: str,
    period: str,
) -> None:
    if format == "html":
        out.write(page(charges, [*columns, *head], rows, len(columns), period))
        return
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*columns, *head])
    # Agents choose names, and a spreadsheet would run a formula in one.
    writer.writerows([[_without_formula(cell) for cell in row] for row in rows])


def _without_formula(text: str) -> str:
    """The text, quoted if a spreadsheet would read it as a formula."""
    formula = text.startswith(("=", "+", "@", "\t", "\r")) or (
        text.startswith("-") and not text[1:2].isdigit()
    )
    return f"'{text}" if formula else text


def page(
    charges: Chargeback,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    names: int,
    period: str,
) -> str:
    """The HTML page, with nothing to fetch: a table, and the days as stacked bars."""

    def cells(row: Sequence[str], tag: str) -> str:
        return "".join(
            f"<{tag}{'' if n < names else ' class=n'}>{escape(cell)}</{tag}>"
            for n, cell in enumerate(row)
        )

    body = "\n".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return (
        "<!doctype html><meta charset=utf-8><title>Chargeback</title><style>"
        "body{font:14px sans-serif;margin:2em}td,th{padding:.2em .8em;text-align:left}"
        ".n{text-align:right;font-variant-numeric:tabular-nums}tr:last-child{font-weight:bold}"
        f"</style><h1>Chargeback</h1><p>{escape(period)}; credits</p>\n{_plot(charges)}\n"
        f"<table><tr>{cells(head, 'th')}</tr>\n{body}\n</table>\n"
    )


def _plot(charges: Chargeback) -> str:
    """The days as stacked bars, in SVG."""
    days = sorted({day for share in charges.shares for day in share.daily})
    largest = charges.shares[: len(_COLOURS) - 1]
    smaller = charges.shares[len(largest) :]
    series = [(" / ".join(s.group), s.daily) for s in largest]
    if smaller:
        series.append(("others", {day: sum(s.daily.get(day, 0) for s in smaller) for day in days}))
    tops = [sum(max(0, daily.get(day, 0)) for _, daily in series) for day in days]
    most = max(tops, default=0) or 1
    width, height = 640, 180
    step = width / max(1, len(days))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width + 180}" height="{height + 40}"'
        ' font-family="sans-serif" font-size="11">'
    ]
    for position, day in enumerate(days):
        base = float(height)
        for number, (name, daily) in enumerate(series):
            bar_height = height * max(0, daily.get(day, 0)) / most
            base -= bar_height
            parts.append(
                f'<rect x="{position * step + 2:.1f}" y="{base:.1f}" width="{max(1, step - 4):.1f}"'
                f' height="{bar_height:.1f}" fill="{_COLOURS[number]}">'
                f"<title>{escape(name)}, {day}: {format_credits(daily.get(day, 0))}</title></rect>"
            )
        if len(days) <= 10 or position % (len(days) // 10 + 1) == 0:
            parts.append(f'<text x="{position * step + 2:.1f}" y="{height + 14}">{day[5:]}</text>')
    for number, (name, _) in enumerate(series):
        y = 12 + 16 * number
        parts.append(
            f'<rect x="{width + 10}" y="{y - 9}" width="10" height="10"'
            f' fill="{_COLOURS[number]}"/><text x="{width + 25}" y="{y}">{escape(name)}</text>'
        )
    return "\n".join([*parts, "</svg>"])
