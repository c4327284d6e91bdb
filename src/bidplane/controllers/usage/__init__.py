"""
Use of leases that outlive their pods: the usage controller writes the condition `InUse` of such a
GPULease on the host, and nothing else.
"""

from bidplane.controllers.usage.controller import UsageController

__all__ = ["UsageController"]
