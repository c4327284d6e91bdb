"""
Counters of devices, in one `model`: from NVIDIA's driver (`nvml`), from a cluster's Prometheus or
the nodes' own pages (`prometheus`, `pages`, in the names of `dcgm`), or `simulated`. `source`
chooses. May touch the driver and the network, and only reads. An unknown counter is absent, never
zero.
"""
