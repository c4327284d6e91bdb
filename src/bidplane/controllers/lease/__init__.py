"""
The lease controller: shows the host's GPULeases in their agents' planes, and ends them.

    controller   which lease to reconcile when, and the order of steps
    projection   a lease's mirror, Node and ResourceSlices in the plane
    companions   claims on the host for devices that a lease needs beside its GPUs
    eviction     notice to a lease's pods, their eviction, the return of the devices
    pods         the pods of a lease, in its plane and on the host

It alone writes mirrors, lease Nodes and their slices; on the host it deletes GPULeases and pods
whose time is over, and sets the conditions `Void` and `LinkDegraded`.
"""

from bidplane.controllers.lease.controller import LeaseController

__all__ = ["LeaseController"]
