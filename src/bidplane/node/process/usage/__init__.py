"""
Resource usage of pods: measured from cgroups or /proc (`counters`), summed for a kubelet's
documents (`summary`), and the use of GPUs that are only declared (`declared`). Only reads.
"""
