"""`bidplane demo --night`: a day and a night of the pilot, in virtual time."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from bidplane.cli.common import console, print_json
from bidplane.core.gate.digest import markdown
from bidplane.sim.night import NightResult, play_night

_DAY_SECONDS = 86_400


def show_night(on_screen: float, *, json: bool) -> None:
    """Play the night, and print it as it goes, in so many seconds; then its verdicts and digest."""
    lines: list[tuple[float, str]] = []
    with tempfile.TemporaryDirectory() as folder:
        result = play_night(Path(folder), lambda at, line: lines.append((at, line)))
    if json:
        print_json(result)
        return
    console.print(
        "[bold]A fleet of 72 GPUs, and nobody awake.[/bold] The pilot looks every 30 s and\n"
        "proposes; the Policies decide. Its rules, the gate, the Policies and the audit are\n"
        "an installation's; requests, leases and pods are played, and a model that answers\n"
        "badly.\n"
    )
    began = time.monotonic()
    for at, line in lines:
        time.sleep(max(0.0, began + on_screen * at / _DAY_SECONDS - time.monotonic()))
        console.print(f"{clock_time(at)}  {line}", markup=False, highlight=False, soft_wrap=True)
    _show_verdicts(result)


def _show_verdicts(result: NightResult) -> None:
    console.print("\n[bold]The verdicts[/bold]")
    for scene in result.scenes:
        console.print(
            f"{clock_time(scene.at)}  {scene.title}: {scene.verdict}",
            style="bold",
            markup=False,
            highlight=False,
        )
        for text in (scene.reason, *scene.proposals):
            console.print(f"       {text}", markup=False, highlight=False, soft_wrap=True)
    console.print("\n[bold]The digest, as `bidplane audit digest` prints it[/bold]\n")
    console.print(markdown(result.digest), markup=False, highlight=False, soft_wrap=True)


def clock_time(seconds: float) -> str:
    """Return the time of day, so many seconds after midnight."""
    minutes = int(seconds // 60)
    return f"{minutes // 60 % 24:02d}:{minutes % 60:02d}"
