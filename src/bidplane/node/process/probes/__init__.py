"""
Probes: over HTTP, gRPC or a connection, or by a command. Sends one probe and tells how it ended;
what follows from it is `core.pods`'.
"""
