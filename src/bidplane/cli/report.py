"""`bidplane report …`: who paid what."""

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
from bidplane.cli.common import Data, console, print_table
from bidplane.cli.ledger import Where, place
from bidplane.errors import UserError
from bidplane.ledger.chargeback import Chargeback, Share
from bidplane.ledger.chargeback import chargeback as add_up
from bidplane.ledger.records import Account
from bidplane.ledger.stores import open_store

app = App(name="report", help="Reports for those who pay.")

_UNTOLD = "(not known)"  # of agents that were gone before the ledger kept such things
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
    ledger: Where = "",
    data: Data = None,
) -> None:
    """
    What was paid for GPU time, and by whom; adds up to the micro-credit with the ledger.

    Args:
        by: agent, team, owner, label:KEY (of the Agent), or several, with commas.
        begin: The first day or time (UTC); else from the beginning.
        end: The first day or time that is left out; else up to now.
        format: table, csv, or html with a plot.
        output: Where to write it; else it is printed.
        credits_per_currency: With it, costs are shown in money as well.
        currency: What to call that money.

    Examples:
        bidplane report chargeback --by team --from 2026-11-01 --to 2026-12-01
        bidplane report chargeback --by agent,label:project --format html --output bill.html
    """
    rate = _rate(credits_per_currency)
    columns = [column.strip() for column in by.split(",")]
    first, last = _time("--from", begin, 0), _time("--to", end, 2**62)
    if first >= last:
        raise UserError("--from must be before --to")
    store = open_store(place(ledger, data), read_only=True)
    try:
        found = add_up(store, begin=first, end=last, group=grouping(columns), day=_day)
    finally:
        store.close()
    if found.total != found.received:
        raise UserError("the ledger does not add up: see `bidplane ledger verify`")
    _write(found, columns, format, output, rate, currency, _period(begin, end))


def grouping(columns: Sequence[str]) -> Callable[[Account], tuple[str, ...]]:
    """Whose a wallet is, in the words of `--by`."""
    for column in columns:
        if column not in ("agent", "team", "owner") and not column.startswith("label:"):
            raise UserError(f"--by {column!r}: use agent, team, owner or label:KEY")

    def group(account: Account) -> tuple[str, ...]:
        return tuple(_value(column, account) for column in columns)

    return group


def _value(column: str, account: Account) -> str:
    if column == "agent":
        return account.name
    if column == "owner":
        return account.owner
    if not account.marks:
        return _UNTOLD
    if column == "team":
        return account.team or "(none)"
    marks = msgspec.json.decode(account.marks, type=dict[str, str])
    return marks.get(column.removeprefix("label:"), "(none)")


def _time(option: str, text: str, otherwise: int) -> int:
    if not text:
        return otherwise
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


def _rows(
    found: Chargeback, rate: Decimal | None, currency: str
) -> tuple[list[str], list[list[str]]]:
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

    rows = [row(share.group, [share]) for share in found.shares]
    width = len(found.shares[0].group) if found.shares else 1
    rows.append(row(["total", *[""] * (width - 1)], found.shares))
    return head, rows


def _write(
    found: Chargeback,
    columns: Sequence[str],
    format: str,
    output: Path | None,
    rate: Decimal | None,
    currency: str,
    period: str,
) -> None:
    head, rows = _rows(found, rate, currency)
    if format == "table" and output is None:
        print_table([*columns, *head], rows, right=" ".join(head))
        console.print(f"{period}; credits; equal to what the ledger received", style="dim")
        return
    if output is None:
        _to(sys.stdout, found, columns, head, rows, format, period)
        return
    try:
        with output.open("w", newline="") as out:
            _to(out, found, columns, head, rows, format, period)
    except OSError as error:
        raise UserError(f"cannot write {output}: {error.strerror}") from error
    console.print(f"{output} has {len(found.shares)} lines, {format_credits(found.total)} in all")


def _to(
    out: IO[str],
    found: Chargeback,
    columns: Sequence[str],
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    format: str,
    period: str,
) -> None:
    if format == "html":
        out.write(page(found, [*columns, *head], rows, len(columns), period))
        return
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*columns, *head])
    # Names are others' to choose, and such files are opened in spreadsheets.
    writer.writerows([[_harmless(cell) for cell in row] for row in rows])


def _harmless(text: str) -> str:
    formula = text.startswith(("=", "+", "@", "\t", "\r")) or (
        text.startswith("-") and not text[1:2].isdigit()
    )
    return f"'{text}" if formula else text


def page(
    found: Chargeback,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    names: int,
    period: str,
) -> str:
    """One file with nothing to fetch: a table, and the days as stacked bars."""

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
        f"</style><h1>Chargeback</h1><p>{escape(period)}; credits</p>\n{_plot(found)}\n"
        f"<table><tr>{cells(head, 'th')}</tr>\n{body}\n</table>\n"
    )


def _plot(found: Chargeback) -> str:
    days = sorted({day for share in found.shares for day in share.daily})
    shown = found.shares[: len(_COLOURS) - 1]
    rest = found.shares[len(shown) :]
    series = [(" / ".join(s.group), s.daily) for s in shown]
    if rest:
        series.append(("others", {day: sum(s.daily.get(day, 0) for s in rest) for day in days}))
    tops = [sum(max(0, daily.get(day, 0)) for _, daily in series) for day in days]
    most = max(tops, default=0) or 1
    width, height = 640, 180
    step = width / max(1, len(days))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width + 180}" height="{height + 40}"'
        ' font-family="sans-serif" font-size="11">'
    ]
    for at, day in enumerate(days):
        base = float(height)
        for number, (name, daily) in enumerate(series):
            tall = height * max(0, daily.get(day, 0)) / most
            base -= tall
            parts.append(
                f'<rect x="{at * step + 2:.1f}" y="{base:.1f}" width="{max(1, step - 4):.1f}"'
                f' height="{tall:.1f}" fill="{_COLOURS[number]}">'
                f"<title>{escape(name)}, {day}: {format_credits(daily.get(day, 0))}</title></rect>"
            )
        if len(days) <= 10 or at % (len(days) // 10 + 1) == 0:
            parts.append(f'<text x="{at * step + 2:.1f}" y="{height + 14}">{day[5:]}</text>')
    for number, (name, _) in enumerate(series):
        y = 12 + 16 * number
        parts.append(
            f'<rect x="{width + 10}" y="{y - 9}" width="10" height="10"'
            f' fill="{_COLOURS[number]}"/><text x="{width + 25}" y="{y}">{escape(name)}</text>'
        )
    return "\n".join([*parts, "</svg>"])
