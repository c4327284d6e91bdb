"""
The process runtime: a pod's containers as processes of this machine.

    records     a pod's folder: what was started, what became of it
    shim        one small supervisor per container; outlives the agent
    forking     forks them: Python itself starts once; `keeping` is their log
    dressing    how a container is run: command, environment, user, mounts
    worker      one pod: looks, decides, acts, reports
    provisions  what a pod is given before it starts, and kept up to date
    starting    starts containers, and finds them again
    telling     the pod's status and Events, to the API
    unit        one container: its process, probes, hooks, end
    runs        has shims started, finds them again, hears when they end
    confine     the sandbox, as a chain of commands in front of the container's own
    view        what a container sees of the file system
    limits      cgroups where they can be written, else rlimits
    addresses   each pod's own address; `apart` keeps agents' from each other, `egress` is the
                way out of the machine
    users       the system's user each pod runs as
    images      what an image's name stands for here
    mounts      volumes as directories
    storage     what a pod keeps on the disk, and whether that is too much
    usage       reads what processes use; `measuring` of all pods
    declared    who holds GPUs that nothing reads
    probing     asks containers how they are; `grpchealth` over gRPC
    sessions    exec and attach
    printed     reads the logs
    runtime     all of it, as `node.api.PodRuntime` and for the agent
"""
