"""
The exchange over HTTP: prices, rounds, wallets, orders. A plain ASGI application.

`app` authenticates and finds the route; `wallets`, `orders` and `rounds` answer, one subject each;
`parameters` reads bodies and queries strictly. They read and commit the ledger; nothing else here
does I/O.
"""

from bidplane.exchange.http.app import ExchangeApp, closed_app
from bidplane.exchange.http.news import News

__all__ = ["ExchangeApp", "News", "closed_app"]
