"""
Commands about agents, planes and money: `agent`, `plane`, `wallet`, `ledger`, `report`, `endpoint`,
`serve`. They ask the server and the exchange over HTTP; `ledger` and `report` read the ledger.
"""
