"""The activator over real sockets, on a real host plane whose controllers a test plays."""
