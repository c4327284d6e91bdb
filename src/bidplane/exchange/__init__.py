"""
The exchange: sells GPU time in rounds, and is the only writer of the ledger.

`snapshot` reads the host, `engine` decides and commits (`round/` has the steps of a round),
`projector` shows the result on the host, `instantsales` sells between rounds, `http` answers
agents and owners, `workers/` are processes that read history and evaluate selectors, and
`service` runs it all.
"""
