"""The labels, annotations, taints and finalizers Bidplane reads and writes, in one place."""

from __future__ import annotations

# What people write on their pods.
MAX_PRICE = "bidplane.dev/max-price"  # credits per GPU-hour
POOL = "bidplane.dev/pool"
LINK = "bidplane.dev/link"  # domain | machine: how close the pod's GPUs must be to each other
DEADLINE = "bidplane.dev/deadline"  # RFC 3339: when the work must be done
URGENCY = "bidplane.dev/urgency"  # low | normal | high
TERM = "bidplane.dev/term"  # seconds it wants to run undisturbed
INSTANT = "bidplane.dev/instant"  # "true" | "false": whether to buy from a pool's float
PREEMPTIBLE = "bidplane.dev/preemptible"  # "false": rather not start than be evicted
BUDGET = "bidplane.dev/budget"  # credits that it, and what comes after it, may cost in all
CHECKPOINT_COMMAND = "bidplane.dev/checkpoint-command"  # run in the pod on notice
GPU_RESOURCE = "nvidia.com/gpu"
MIG_PREFIX = "nvidia.com/mig-"  # and a profile: a resource by which a pod asks for a part
GPU_FRACTION = "gpu-fraction"  # as KAI reads it: "0.5" of one GPU
GPU_MEMORY = "gpu-memory"  # as KAI reads it: MiB of one GPU's memory
GPU_FRACTION_DEVICES = "gpu-fraction-num-devices"  # of KAI: the fraction, of so many GPUs
ISOLATION = "bidplane.dev/isolation"  # label of a leased part: `mig`, or `none`
WORK_SECONDS = "bidplane.dev/work-seconds"  # how long it will run
GANG = "bidplane.dev/gang"  # pods of one name are won and bound together, or not at all
GANG_SIZE = "bidplane.dev/gang-size"
BID_NAME = "bidplane.dev/bid"  # a Bid written by hand, whose lease the pod uses

# A program, not a pod, holds what this bid wins: while the beat changes at least this often.
HOLD_SECONDS = "bidplane.dev/hold-seconds"
HOLD_BEAT = "bidplane.dev/hold-beat"
COSTS_AT_MOST = "bidplane.dev/costs-at-most"  # credits: what `bidplane mcp` let a model promise

# What a simulated node reads from a pod, in place of running its image.
SIMULATED_SECONDS = "bidplane.dev/simulated-seconds"
SIMULATED_START_SECONDS = "bidplane.dev/simulated-start-seconds"  # until its first process
SIMULATED_LOAD_SECONDS = "bidplane.dev/simulated-load-seconds"  # from there until it is ready
SIMULATED_FAILURES = "bidplane.dev/simulated-failures-per-hour"
SIMULATED_SEED = "bidplane.dev/simulated-seed"
SIMULATED_XID = "bidplane.dev/simulated-xid"  # an error its GPUs show
SIMULATED_EXIT_CODE = "bidplane.dev/simulated-exit-code"
SIMULATED_SAVED = "bidplane.dev/simulated-saved"  # by the node: how far a checkpoint got
SIMULATED_DONE = "bidplane.dev/simulated-done"  # where it goes on from
SIMULATED_SHUTDOWN_SECONDS = "bidplane.dev/simulated-shutdown-seconds"
SIMULATED_UTILISATION = "bidplane.dev/simulated-utilisation-percent"
SIMULATED_MEMORY = "bidplane.dev/simulated-memory-percent"
SIMULATED_LINGER = "bidplane.dev/simulated-memory-linger-seconds"  # after its end

# What we write on them: why it waits, by when it must be gone, how its checkpoint went.
PENDING = "bidplane.dev/pending"
NOTICE = "bidplane.dev/notice"
CHECKPOINT = "bidplane.dev/checkpoint"  # by the node, once it ran the command

# Written by the node on the host's pod, and carried back.
OF_THE_NODE = (CHECKPOINT, SIMULATED_SAVED)

# Who an object on the host belongs to, and what it is called in the agent's plane.
AGENT = "bidplane.dev/agent"
PLANE_NAMESPACE = "bidplane.dev/plane-namespace"
PLANE_NAME = "bidplane.dev/plane-name"
PLANE_UID = "bidplane.dev/plane-uid"
COPY = "bidplane.dev/copy"  # of what a plane's pods name: it goes when nobody names it
HOSTS = "bidplane.dev/hosts"  # lines for /etc/hosts: the names its plane has for addresses

# On the host's copy of an Endpoint: "wake TIME" or "sleep TIME", by a person.
ENDPOINT_REQUEST = "bidplane.dev/endpoint-request"
# Likewise: the replicas that it is to have, carried into its plane's spec once, and a name for
# each restart of its Deployment.
ENDPOINT_REPLICAS = "bidplane.dev/endpoint-replicas"
RESTARTED_AT = "kubectl.kubernetes.io/restartedAt"  # as `kubectl rollout restart` writes it
ENDPOINT_RETRY = "bidplane.dev/endpoint-retry"

# In an agent's plane.
PART_RESOURCE = "bidplane.dev/gpu-hundredths"  # of a node that is a part of a GPU, rounded down
LEASE = "bidplane.dev/lease"
POD_NAME = "bidplane.dev/pod-name"
POD_UID = "bidplane.dev/pod-uid"
PACE = "bidplane.dev/pace"  # on a Bid: what the strategy `paced` remembers
WORK = "bidplane.dev/work"  # on a pod that came back: the uid of the first, whose budget it shares
EVICTIONS = "bidplane.dev/evictions"
REQUEUE = "bidplane.dev/requeue"
LINKS_AT_START = "bidplane.dev/links-at-start"  # of a lease's node: its devices' links
RECLAIM_TAINT = "bidplane.dev/reclaim"

# CPU and memory that a node's owner offers to pods without GPUs: annotations of the host's node.
# In a plane, and on a pod that uses it, a label that names the host's node.
OFFERS_CPU = "bidplane.dev/offers-cpu"
OFFERS_MEMORY = "bidplane.dev/offers-memory"
OFFERED = "bidplane.dev/offered"

# On a node of the host: it is to run nothing but what is sold of it. Agents' pods tolerate it.
DEDICATED_TAINT = "bidplane.dev/dedicated"

# For the gate. An annotation by which a person pins an object: by default nobody changes it then.
PINNED = "bidplane.dev/pinned"
# A label of the pods, leases and nodes that carry the pilot's own logging and audit.
OPERATOR_PART = "bidplane.dev/operator-part"

# The uid of the Proposal that last changed an object, written with the change.
PROPOSAL_MARK = "bidplane.dev/proposal"

# Finalizers, each named after the part that removes it.
PLANE_FINALIZER = "bidplane.dev/plane"
WALLET_FINALIZER = "bidplane.dev/wallet"
LEASE_FINALIZER = "bidplane.dev/lease"

# Attributes of devices in ResourceSlices.
PRODUCT_ATTRIBUTE = "productName"
TYPE_ATTRIBUTE = "type"  # gpu, or mig: a part of one
NUMA_ATTRIBUTE = "resource.kubernetes.io/numaNode"
NVLINKS_ATTRIBUTE = "bidplane.dev/nvlinksPerPeer"
WIDTH_ATTRIBUTE = "bidplane.dev/pcieLinkWidth"
LINK_DOMAIN_ATTRIBUTE = "bidplane.dev/linkDomain"
SHARE_ATTRIBUTE = "bidplane.dev/share"  # of a part of a GPU, in the plane that leases it
PARENT_ATTRIBUTE = "bidplane.dev/partOf"
MIG_CAPABLE_ATTRIBUTE = "bidplane.dev/migCapable"
DEVICE_CLASS = "gpu.bidplane.dev"  # and the driver that our nodes publish under
NVIDIA_GPU_CLASS = "gpu.nvidia.com"  # likewise
NVIDIA_MIG_CLASS = "mig.nvidia.com"
GPU_CLASSES = (DEVICE_CLASS, NVIDIA_GPU_CLASS)
