"""
One Kubernetes client protocol, and its HTTP transport.
"""
