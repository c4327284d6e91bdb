"""
The node lifecycle controller of a host that is our own plane; a cluster has its own. Writes the
conditions and taints of Nodes whose heartbeat stopped, and evicts their pods.
"""

from bidplane.controllers.node.lifecycle import KINDS, NodeLifecycleController

__all__ = ["KINDS", "NodeLifecycleController"]
