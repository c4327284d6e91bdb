"""The command `bidplane`."""

from __future__ import annotations

import sys

from cyclopts import App

from bidplane import __version__
from bidplane.cli import (
    agent,
    bench,
    demo,
    fleet,
    ledger,
    market,
    mcp,
    node,
    plane,
    process,
    run,
    sim,
    top,
    up,
    wallet,
)
from bidplane.errors import ApiError, UserError

app = App(
    name="bidplane",
    version=__version__,
    help="""
    Every AI agent gets its own Kubernetes and a wallet; GPU time goes where it is worth most.

    A first walk:

        bidplane up                                        # in a terminal of its own
        bidplane agent create trainer --priority 1 --refill 100
        kubectl --kubeconfig trainer.kubeconfig apply -f examples/pod.yaml
        bidplane market watch

    Or let it play by itself: bidplane demo
    """,
    help_format="plaintext",
)
app.command(up.up)
app.command(demo.demo)
app.command(agent.app)
app.command(plane.app)
app.command(wallet.app)
app.command(market.app)
app.command(fleet.app)
app.command(top.top)
app.command(run.run)
app.command(mcp.mcp)
app.command(ledger.app)
app.command(node.node)
app.command(sim.app)
app.command(bench.bench)
app.command(process.app)


def main() -> None:
    """Run; a refusal is one line on standard error and exit code 2."""
    try:
        app()
    except (UserError, ApiError) as error:
        print(f"bidplane: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
