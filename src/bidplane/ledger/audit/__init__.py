"""
The audit of the gate: every verdict, approval and outcome, append-only and chained by hash.

It is in the ledger's database, in a table and a chain of its own: the server writes it, the
exchange writes the rest. `trail` appends and reads, `check` verifies.
"""
