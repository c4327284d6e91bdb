"""The day that `bidplane demo` and `bidplane up --example` play."""
