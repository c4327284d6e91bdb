"""
Nodes: kubelets for simulated pods and for pods as processes, their inventory and their HTTP server.
"""
