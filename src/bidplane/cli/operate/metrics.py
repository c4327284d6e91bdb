"""`bidplane metrics …`: metrics for Prometheus."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from bidplane.api.times import rfc3339
from bidplane.cli.common import Data, console, installation
from bidplane.errors import UserError
from bidplane.machinery.clock import SystemClock

app = App(name="metrics", help="Metrics for Prometheus.")

_LONGEST_HOURS = 24 * 366


@app.command
def token(
    *,
    hours: Annotated[float, Parameter(help="How long it lasts.")] = 24 * 30,
    output: Annotated[
        Path | None,
        Parameter(name=["--output", "-o"], help="The file to write; else it is printed."),
    ] = None,
    data: Data = None,
) -> None:
    """
    Issue a token for /metrics of the server and the exchange, and nothing else.

    For example:
        bidplane metrics token --output prometheus.token
    """
    if not 0 < hours <= _LONGEST_HOURS:
        raise UserError(f"--hours must be more than 0 and at most {_LONGEST_HOURS}, not {hours:g}")
    target = installation(data)
    address, now = target.address(), SystemClock().now()
    bearer = target.metrics_token(seconds=int(hours * 3600), now=now)
    if output is None:
        print(bearer)
        return
    try:
        output.touch(mode=0o600)
        output.write_text(bearer)
    except OSError as error:
        raise UserError(f"cannot write {output}: {error.strerror}; choose with --output") from error
    console.print(
        f"wrote {output}, good until {rfc3339(now + hours * 3600)}\n"
        f"  server    {address.url}/metrics\n"
        f"  exchange  {address.exchange_url}/metrics\n"
        f"  authority {target.ca_file}",
        soft_wrap=True,
        markup=False,
    )
