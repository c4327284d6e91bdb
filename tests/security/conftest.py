"""
What a tenant may try against the machine it runs on, and against its neighbours.

A file for each kind of attack. Nodes are those of `tests/node`: real processes on this machine, on
both of their networks. `test_elsewhere.py` runs the attacks on nodes again as an ordinary user.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from bidplane.node.process.network.addresses import _no_namespaces
from node.conftest import box as node_box
from node.conftest import open_folder

_WHY = _no_namespaces()
_both = ["loopback"] if _WHY else ["loopback", "namespace"]  # without root there is one


@pytest.fixture(params=_both)
def box(request: pytest.FixtureRequest, node_box: Callable[..., None]) -> Callable[..., None]:
    """As in `tests/node`, on each network that this machine can have."""

    def tell(story: Any, **settings: Any) -> None:
        node_box(story, **{"network": request.param, **settings})

    return tell


__all__ = ["box", "node_box", "open_folder"]
