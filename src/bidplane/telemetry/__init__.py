"""What devices do: counters from NVML, DCGM and simulated nodes, as one model."""
