"""
Container logs: written by shims (`writer`), read for `kubectl logs` (`reader`). Touches the files
of a pod's log folder, which are limited in size.
"""
