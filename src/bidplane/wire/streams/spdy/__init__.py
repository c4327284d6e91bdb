"""SPDY/3.1, as far as Kubernetes' streams use it: frames, and the life of streams."""
