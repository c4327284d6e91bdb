"""
The objects of a plane: in memory for reads, in a SQLite file for durability, with their watch
history.
"""
