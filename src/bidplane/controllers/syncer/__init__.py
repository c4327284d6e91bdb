"""
The syncer: copies an agent's bids and bound pods to the host, and their status back.

    controller           which object to synchronise when; bids
    pods                 a pod and its host pod: creation, status, deletion
    events               Events about host pods, copied to their originals
    deviceclaims         the host's ResourceClaim for the devices of a pod
    dependencies         copies of the config maps, secrets, tokens and volume claims of pods
    ephemeralcontainers  containers that `kubectl debug` adds to a running pod

On the host it alone writes an agent's Bids, Pods and copies; in planes, the status of Bids and of
bound pods, and Events.
"""

from bidplane.controllers.syncer.controller import SyncerController

__all__ = ["SyncerController"]
