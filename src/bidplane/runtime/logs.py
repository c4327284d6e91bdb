"""The form of our processes' logs: one line for an event, and plain tracebacks."""

from __future__ import annotations

import structlog


def configure_logs() -> None:
    """
    Log in lines of `key=value`.

    Tracebacks are plain. A decorated one holds the event loop for seconds if it is deep, and shows
    the values of local variables, among them tokens and the content of Secrets.
    """
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event"]),
        ]
    )
