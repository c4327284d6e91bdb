"""Parts that several benchmarks use: load generators, attackers, servers to measure."""
