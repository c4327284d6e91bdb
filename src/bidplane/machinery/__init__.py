"""
The parts that controllers are built of.

    clock                    time as an argument
    controller               a keyed work queue, and the loop that drains it
    informer, typed, index   caches of one kind, as structs or views, and by other keys
    planes                   caches of all agents' planes
    noting                   a client whose writes are in those caches at once
    events                   Kubernetes Events
    latch                    a flag that is set once

It speaks to planes through `kube.client` alone, and knows no kind's rules.
"""
