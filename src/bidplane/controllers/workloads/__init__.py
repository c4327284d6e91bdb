"""
The controllers that a cluster's kube-controller-manager runs, for every plane at once.

One work queue per kind serves all planes; `core/workloads` decides.
"""

from bidplane.controllers.workloads.all import KINDS, Workloads

__all__ = ["KINDS", "Workloads"]
