"""
Parts that several benchmarks use: load generators, attackers, servers to measure.

Some are programs, which a benchmark starts as processes of their own, so that what is measured and
what measures do not share an interpreter. They may use every layer below `bench`; nothing else may
use them.
"""
