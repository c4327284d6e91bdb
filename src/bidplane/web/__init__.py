"""
The public address: planes, the exchange, credentials and pod streams behind one port.

`app` has the routes. `planes` and `credentials` serve owners, `decisions` people's verdicts on
Proposals; `exchange_proxy` and `podstreams` pass on what other processes answer. It authenticates
and finds who answers; it decides nothing about bids or money.
"""
