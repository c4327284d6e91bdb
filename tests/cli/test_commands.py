"""The list of commands: each is there when it is asked for, and none before."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bidplane.cli import COMMANDS, app

NAMES = [target.partition(":")[0] for target in COMMANDS]


@pytest.mark.parametrize("name", [*NAMES, "process"])
def test_every_command_can_be_loaded(name: str) -> None:
    assert app[name].name == (name,)


def test_help_loads_no_command() -> None:
    code = (
        "import sys, bidplane.cli as c\n"
        "try: c.app(['--help'])\n"
        "except SystemExit: pass\n"
        "print([m for m in sys.modules if m.startswith('bidplane.cli.')], file=sys.stderr)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stderr.strip() == "[]"
    assert all(f" {name} " in said.stdout for name in NAMES)
