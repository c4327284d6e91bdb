"""
The objects of a plane: in memory for reads, in a SQLite file for durability, with their watch
history.

`store` is the whole, `collection` one resource in memory and `feed` its history, `journal` the
file, written on `writers`' threads. `baseline` has objects that all planes share, `seeds` those of
a new one; `snapshots` copies a plane, `watermark` notices lost revisions. Knows revisions and
bytes, not what a kind means.
"""
