"""The list of commands: each is there when it is asked for, and none before."""

from __future__ import annotations

import contextlib
import subprocess
import sys

import pytest

from bidplane.cli import COMMANDS, app, build

NAMES = list(COMMANDS)


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
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert completed.stderr.strip() == "[]"
    assert all(f" {name} " in completed.stdout for name in NAMES)


def _commands(path: list[str]) -> list[list[str]]:
    """Every command below `path` that does something, as the words one types."""
    node = app[path[0]]
    for name in path[1:]:
        node = node[name]
    names = [name for name in node if not name.startswith("-")]
    if not names:
        return [path]
    return [command for name in names for command in _commands([*path, name])]


@pytest.mark.parametrize("name", NAMES)
def test_every_help_has_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The list of commands has a summary of each; the command's own help has more."""
    for command in _commands([name]):
        with contextlib.suppress(SystemExit):
            build(name)([*command, "--help"])
        example = f"bidplane {' '.join(command)}"
        assert example in capsys.readouterr().out.partition("\n")[2], f"{example} has no example"
