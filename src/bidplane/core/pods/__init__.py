"""
A pod's life on a node, decided here and carried out in `bidplane.node`.

    life          what happens next: which container starts, stops, waits
    spec          what the pod's spec says, with its defaults
    environment   a container's variables, command and arguments
    files         what is in a ConfigMap, Secret, downward API or projected volume
    probes        when a run of good or bad answers counts
    status        what the API is told
"""
