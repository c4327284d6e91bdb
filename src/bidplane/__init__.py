"""Bidplane: every AI agent gets its own Kubernetes and a wallet."""

__version__ = "0.1.0"
