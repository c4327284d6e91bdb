"""
Requests and answers over HTTP that are no Kubernetes objects: prices, wallets, orders and
statements of the exchange (`exchange`), and what owners ask about planes (`planes`). Structs only;
clients and servers share them.
"""
