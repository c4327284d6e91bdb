"""
Devices as they are and as they are sold: chains of block sizes, MIG, links, placement, claims.
Pure.
"""
