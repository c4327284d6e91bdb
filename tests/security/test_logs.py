"""What is logged of a failure holds no values of agents, and holds no loop."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from bidplane.cli.devices import node as node_command
from bidplane.errors import UserError
from bidplane.runtime.logs import configure_logs

SECRET = "swordfish"


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()


def endless(depth: int, token: str) -> int:
    return endless(depth + 1, token) + 1


def test_a_deep_failure_is_logged_at_once_and_without_values(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure_logs()
    before = time.thread_time()
    try:
        endless(0, SECRET)
    except RecursionError as error:
        structlog.get_logger("test").error("bug", exc_info=error)
    assert time.thread_time() - before < 1
    out = capsys.readouterr().out
    assert "RecursionError" in out
    assert SECRET not in out


def test_a_node_logs_in_this_form(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`bidplane node` is a process of its own, also under `bidplane up`."""

    def no_client(*_: Any, **__: Any) -> Any:
        raise UserError("as far as this test goes")

    monkeypatch.setattr(node_command, "client_from", no_client)
    assert not structlog.is_configured()
    with pytest.raises(UserError, match="as far as"):
        node_command.node(kubeconfig=tmp_path / "none")
    assert structlog.is_configured()
