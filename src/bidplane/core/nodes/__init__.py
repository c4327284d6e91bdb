"""
Nodes of the host and of planes. Pure.

    availability  whether a host's node can take a pod, and if not, why
    fitting       whether a pod fits a node, as kube-scheduler decides it
    offers        CPU and memory that owners offer to pods without GPUs
    heartbeats    nodes whose heartbeat stops: conditions, taints, evictions
    simulation    the behaviour of a simulated pod, from its annotations
"""
