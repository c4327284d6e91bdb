"""
Kubernetes as pure functions: schemas, protobuf, patches, selectors, tables, stream protocols.

Folders: `schema/` (shapes, validation, OpenAPI), `kinds/` (rules of each kind), `patches/`,
`table/`, `streams/`, and recorded `data/`. It knows what Kubernetes says on the wire, nothing of
agents or GPUs. Every layer above may use it, and it does no I/O.
"""
