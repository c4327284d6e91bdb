"""
Leases as their agents see them, and how they end. Pure: works on structs, and returns drafts.

    lifecycle  the phases of a lease, and the events between them
    nodes      the mirror, Node and ResourceSlice that show a lease in its plane
    notice     the time from a lease's notice to its pods' end
    requeue    bare pods that come back after an eviction
    holders    leases that a program holds, by a heartbeat, instead of a pod
    idle       detection of leases whose GPUs do nothing
"""
