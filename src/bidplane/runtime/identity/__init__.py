"""
Certificates and tokens of an installation: its authority (`certificates`), users of one plane
(`clientcerts`), bearer tokens (`credentials`), and their revocation (`generations`). Touches the
keys in the installation's folder, and no network.
"""
