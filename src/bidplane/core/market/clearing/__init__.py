"""
Clearing one lot: who wins, what fits, and who pays for whom it displaces. Pure.

`lot` clears one lot with `greedy` where nobody can be displaced, with `contested` and `displacing`
where somebody can, and with `exact` where it is small. `capacity` says if blocks fit, `columns` is
`greedy` for thousands of bids, `liability` and `preemption` say what displaced leases get. It knows
no ledger, no agent's plane and no object of Kubernetes.
"""
