"""
Volumes as directories, opened so that no tenant's path leads out of its own.

`mounts` makes them, `paths` opens below them, `quota` measures, `tmpfs` mounts memory, `removal`
deletes what a tenant left. Touches the node's data folder and its mounts.
"""
