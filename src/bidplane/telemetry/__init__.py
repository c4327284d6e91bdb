"""Counters of devices, from NVML, DCGM and simulated nodes, in one model."""
