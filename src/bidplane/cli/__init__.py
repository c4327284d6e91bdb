"""The command `bidplane`."""

from __future__ import annotations

import sys

from cyclopts import App

from bidplane import __version__
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
# By name: a command imports what it needs when it is asked for, and the rest never. The words
# are what the list of commands shows; the command's own help goes on from there.
COMMANDS = {
    "up:up": "Start Bidplane here, in the foreground.",
    "demo:demo": "Play the idea as a story, in about a minute.",
    "agent:app": "Agents: who may bid, and how well each is funded.",
    "plane:app": "Planes: a Kubernetes each, for whatever needs one.",
    "wallet:app": "Wallets: balances, statements, funding, transfers.",
    "market:app": "Prices and rounds.",
    "fleet:app": "Nodes, their GPUs, and how these are linked.",
    "top:top": "Every GPU: what it does, and who holds it.",
    "run:run": "Lease GPUs, run a command on them, give them back.",
    "mcp:mcp": "The market as tools for a model.",
    "report:app": "Reports for those who pay.",
    "ledger:app": "The ledger: money and leases.",
    "node:node": "Be a node: run the pods that are bound to it.",
    "sim:app": "Play a workload under a policy, in virtual time.",
    "bench:bench": "Measure, beside a peer in the same run.",
}
for _target, _words in COMMANDS.items():
    app.command(f"{__name__}.{_target}", name=_target.partition(":")[0], help=_words)
app.command(f"{__name__}.process:app", name="process", show=False)


def main() -> None:
    """Run; a refusal is one line on standard error and exit code 2."""
    try:
        app()
    except (UserError, ApiError) as error:
        print(f"bidplane: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
