"""The labels, annotations, taints and finalizers Bidplane reads and writes, in one place."""

from __future__ import annotations

# What people write on their pods.
MAX_PRICE = "bidplane.dev/max-price"  # credits per GPU-hour
POOL = "bidplane.dev/pool"
DEADLINE = "bidplane.dev/deadline"  # RFC 3339: when the work must be done
URGENCY = "bidplane.dev/urgency"  # low | normal | high
TERM = "bidplane.dev/term"  # seconds it wants to run undisturbed
PREEMPTIBLE = "bidplane.dev/preemptible"  # "false": rather not start than be evicted
CHECKPOINT_COMMAND = "bidplane.dev/checkpoint-command"  # run in the pod on notice
GPU_RESOURCE = "nvidia.com/gpu"

# A program, not a pod, holds what this bid wins: while the beat changes at least this often.
HOLD_SECONDS = "bidplane.dev/hold-seconds"
HOLD_BEAT = "bidplane.dev/hold-beat"

# What a simulated node reads from a pod, in place of running its image.
SIMULATED_SECONDS = "bidplane.dev/simulated-seconds"
SIMULATED_EXIT_CODE = "bidplane.dev/simulated-exit-code"
SIMULATED_SHUTDOWN_SECONDS = "bidplane.dev/simulated-shutdown-seconds"
SIMULATED_UTILISATION = "bidplane.dev/simulated-utilisation-percent"
SIMULATED_MEMORY = "bidplane.dev/simulated-memory-percent"

# What we write on them: why it waits, and by when it must be gone.
PENDING = "bidplane.dev/pending"
NOTICE = "bidplane.dev/notice"

# Who an object on the host belongs to, and what it is called in the agent's plane.
AGENT = "bidplane.dev/agent"
PLANE_NAMESPACE = "bidplane.dev/plane-namespace"
PLANE_NAME = "bidplane.dev/plane-name"
PLANE_UID = "bidplane.dev/plane-uid"

# In an agent's plane.
LEASE = "bidplane.dev/lease"
POD_NAME = "bidplane.dev/pod-name"
POD_UID = "bidplane.dev/pod-uid"
EVICTIONS = "bidplane.dev/evictions"
REQUEUE = "bidplane.dev/requeue"
RECLAIM_TAINT = "bidplane.dev/reclaim"

# Finalizers, each named after the part that removes it.
PLANE_FINALIZER = "bidplane.dev/plane"
WALLET_FINALIZER = "bidplane.dev/wallet"
LEASE_FINALIZER = "bidplane.dev/lease"

# Attributes of devices in ResourceSlices.
PRODUCT_ATTRIBUTE = "productName"
TYPE_ATTRIBUTE = "type"  # gpu, or mig: a part of one
LINK_DOMAIN_ATTRIBUTE = "bidplane.dev/linkDomain"
DEVICE_CLASS = "gpu.bidplane.dev"
