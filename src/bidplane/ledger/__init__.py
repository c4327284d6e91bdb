"""
Money and leases: double entry, in one database, chained by hash.

`ledger` opens it, `commit` writes to it, `wallets`, `budgets` and `leases/` say what may happen,
`records` are its rows. `verify`, `rounds` and `reports/` read it back. `store` is the contract with
a database, which `stores` chooses; `watermark` notices lost commits. Only the exchange writes it,
except for the gate's table (`audit/`). It calls no Kubernetes API, and reads no clock.
"""

from __future__ import annotations

from bidplane.ledger.ledger import Ledger
from bidplane.ledger.reports.statement import statement
from bidplane.ledger.verify import verify

__all__ = ["Ledger", "statement", "verify"]
