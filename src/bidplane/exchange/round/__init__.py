"""
One round as the exchange runs it.

Before clearing, `inputs` brings together bids, `inventory` (devices and their holders),
`incumbents`, `grants` and `defaultprices`. After it, `awards` and `moves` are what the ledger
takes. `observations` and `conditions` are changes of leases since the last round, `usage` finds
idle ones, `termbounds` and `multilot` have the rules of terms and of bids for several lots. It may
read the ledger and the snapshot; writing is left to `exchange.engine`.
"""
