"""
The process runtime: a pod's containers as processes of this machine.

    runtime     all pods of the node, as `node.api.PodRuntime` and for the agent
    worker      one pod: observes, decides (`core.pods.life`), acts, reports
    supplies    what a pod needs before it can start; `provisions` gives it to the pod
    records     a pod's folder: what was started, and what became of it
    reporting   the pod's status and Events, to the API
    settings    what the owner of the machine decides

    container/  one container: launch, shim, commands in it
    sandbox/    what confines it
    network/    each pod's own address
    volumes/    volumes as directories
    logs/       what containers print
    probes/     how containers are
    usage/      what pods use

May touch processes, files, networks and cgroups of this machine, and the API for its own pods.
"""
