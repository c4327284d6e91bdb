"""
The command `bidplane`.

A folder for each group of commands; `common` finds the installation, sends requests and prints. A
command asks a running installation over HTTP, reads its ledger, or starts its processes through
`wiring`; the parts below decide. `COMMANDS` is the list.
"""

from __future__ import annotations

import os
import signal
import sys

from cyclopts import App

from bidplane import __version__
from bidplane.errors import ApiError, UserError

# By module, so that a command's modules are imported only when it runs. The texts are those of the
# list of commands.
COMMANDS = {
    "up": ("operate.up:up", "Start Bidplane here, in the foreground."),
    "status": ("operate.status:status", "The state of each part of the installation."),
    "doctor": ("operate.doctor:doctor", "Diagnose a Kubernetes cluster: can its GPUs be sold?"),
    "shadow": ("operate.shadow:shadow", "Look at a cluster: idle GPUs, waiting, the market."),
    "demo": ("story.demo:demo", "Play a day of five agents, in about a minute."),
    "agent": ("account.agent:app", "Agents: who may bid, and how well each is funded."),
    "plane": ("account.plane:app", "Planes: Kubernetes control planes, created in milliseconds."),
    "endpoint": ("account.endpoint:app", "Endpoints: services that sleep, and wake on a request."),
    "serve": ("account.serve:serve", "Serve a model that holds a GPU only while it is used."),
    "wallet": ("account.wallet:app", "Wallets: balances, statements, funding, transfers."),
    "market": ("market:app", "Prices and rounds."),
    "fleet": ("devices.fleet:app", "Nodes, their GPUs, and the links between them."),
    "top": ("devices.top:top", "Every GPU: its load, and who holds it."),
    "run": ("run:run", "Lease GPUs, run a command on them, give them back."),
    "mcp": ("mcp:mcp", "The market as tools for a model."),
    "report": ("account.report:app", "Cost reports."),
    "ledger": ("account.ledger:app", "The ledger: money and leases."),
    "user": ("gate.user:app", "People: names, roles, credentials."),
    "proposals": ("gate.proposals:app", "Intended changes, and the decisions on them."),
    "pilot": ("gate.pilot:app", "The pilot: observes the fleet and proposes changes."),
    "idle": ("gate.idle:idle", "Devices that are held and do nothing."),
    "audit": ("gate.audit:app", "Verdicts, approvals and outcomes, chained by hash."),
    "metrics": ("operate.metrics:app", "Metrics for Prometheus."),
    "node": ("devices.node:node", "Run this machine as a node."),
    "sim": ("sim:app", "Simulate a workload under a policy, in virtual time."),
    "bench": ("bench:bench", "Run benchmarks, compared with a peer in the same run."),
}


def build(invoked: str) -> App:
    """
    Return the command line. A command's own help is read only if it is the one `invoked`: reading
    it imports the command's modules, so the list of commands has its texts from the table.
    """
    application = App(
        name="bidplane",
        version=__version__,
        help="""
        Every AI agent gets its own Kubernetes and a wallet; GPU time goes where it is worth most.

        A first walk:

            bidplane up                                        # in its own terminal
            bidplane agent create trainer --priority 1 --refill 100
            kubectl --kubeconfig trainer.kubeconfig apply -f examples/pod.yaml
            bidplane market watch

        Or watch a demonstration: bidplane demo
        """,
        help_format="plaintext",
    )
    for name, (target, summary) in COMMANDS.items():
        text = None if name == invoked else summary
        application.command(f"{__name__}.{target}", name=name, help=text)
    application.command(f"{__name__}.operate.process:app", name="process", show=False)
    return application


app = build(sys.argv[1] if len(sys.argv) > 1 else "")


def main() -> None:
    """Run the command; a refusal is one line on standard error and exit code 2."""
    try:
        app()
        sys.stdout.flush()
    except (UserError, ApiError) as error:
        print(f"bidplane: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader closed the pipe, as `head` does. Python would fail when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
