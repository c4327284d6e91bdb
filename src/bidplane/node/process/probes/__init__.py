"""Probes: over HTTP, gRPC or a connection, or by a command."""
