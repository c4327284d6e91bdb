"""
SPDY/3.1, as far as Kubernetes' streams use it: `frames` and their compression (`dictionary`), and
the life of streams (`session`). Pure.
"""
