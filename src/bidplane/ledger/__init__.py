"""
Money and leases: double entry, in one database, chained by hash.

`ledger` opens it, `commit` writes to it, `wallets` and `leases` say what may happen,
`verify` and `statement` read it back.
"""

from __future__ import annotations

from bidplane.ledger.ledger import Ledger
from bidplane.ledger.reports.statement import statement
from bidplane.ledger.verify import verify

__all__ = ["Ledger", "statement", "verify"]
