"""
The processes of an installation: its folder, supervision, certificates and tokens, and serving
HTTP. Knows nothing of planes or the market.
"""
