"""Reports from the ledger: statements, chargeback, exports."""
