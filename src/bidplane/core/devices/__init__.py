"""
Devices as they are and as they are sold. Pure.

    topology, links               link domains of a machine, and links that degraded
    chain, ranges                 block sizes, and the parts of one GPU
    mig, migdevices, migplan      MIG: geometry, instances as published, creation and moves
    placement, bulkplacement      the devices that each winner gets
    companions                    devices without a price beside a bid's GPUs
    foreignuse                    GPUs that are used outside the market
    bindingconditions             devices to be prepared before a pod is bound
    claims/                       allocation of ResourceClaims
"""
