"""Exec, attach and port-forward: kubectl's protocols at one end, a `PodRuntime` at the other."""
