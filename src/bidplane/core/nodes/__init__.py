"""
Nodes: heartbeats, whether one can take a pod, what one offers without GPUs, and simulated pods.
Pure.
"""
