"""
Making room: leases and MIG instances that move so that a larger block fits. Pure.

`defragmentation` chooses the leases and who pays, `moves` is the lot after it, `repacking` chooses
MIG instances. What is moved is decided after clearing, and changes no winner.
"""
