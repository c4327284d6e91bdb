"""
Schemas of kinds, built-in and custom. Pure.

`shapes` is a kind's schema, `decode` brings a client's object into it, `validate` checks it,
`typed` merges and compares by it, `versions` converts. `crds` makes schemas of
CustomResourceDefinitions; `openapi` and `openapi_v2` publish them.
"""
