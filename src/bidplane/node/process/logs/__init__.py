"""Container logs: written by shims, read for `kubectl logs`."""
