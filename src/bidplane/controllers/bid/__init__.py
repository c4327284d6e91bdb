"""
Bids that a program holds, instead of a pod: `heartbeats` claims what they win while the program's
heartbeat goes on, and deletes the bid when it stops. Writes the condition `Claimed` of GPULeases,
and deletes Bids in planes.
"""

from bidplane.controllers.bid.heartbeats import BidHeartbeatController

__all__ = ["BidHeartbeatController"]
