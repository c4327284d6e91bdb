"""
Processes beside the exchange's own, so that a round waits for neither: `history` reads the ledger's
past, `selectors` evaluates agents' expressions within a budget. `worker` asks a child process one
question at a time; the children (`…process`) read the ledger at most, and write nothing.
"""
