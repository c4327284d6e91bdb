"""
The exchange: sells GPU time in rounds, and is the only writer of the ledger.

`snapshot` reads the host, `engine` decides and commits, `projector` tells the host,
`http` answers agents and owners, `service` runs it all.
"""

from __future__ import annotations

from bidplane.exchange.engine import Engine, Report
from bidplane.exchange.service import Exchange

__all__ = ["Engine", "Exchange", "Report"]
