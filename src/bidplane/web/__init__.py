"""
The public address: planes, the exchange, credentials and pod streams behind one port.
"""
