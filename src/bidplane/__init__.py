"""Bidplane: every AI agent gets its own Kubernetes and a wallet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bidplane.client import AsyncClient, Client

__version__ = "0.2.0"
__all__ = ["AsyncClient", "Client", "__version__"]


def __getattr__(name: str) -> Any:
    """The client is loaded when it is asked for: every command imports this file."""
    if name in ("AsyncClient", "Client"):
        from bidplane import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
