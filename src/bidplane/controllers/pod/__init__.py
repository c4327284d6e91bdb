"""
Bare pods that come back: `requeue` creates an evicted pod again from the PodTemplate that the lease
controller saved, and deletes the template. Writes Pods and PodTemplates in planes.
"""

from bidplane.controllers.pod.requeue import RequeueController

__all__ = ["RequeueController"]
