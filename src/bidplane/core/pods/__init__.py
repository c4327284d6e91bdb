"""
A pod's life on a node, decided here and carried out in `bidplane.node`.

    life          the life cycle: which container starts, stops, waits
    spec          the pod's spec with its defaults
    environment   a container's variables, command and arguments
    files         the files of a ConfigMap, Secret, downward API or projected volume
    probes        the number of good or bad answers in a row that counts
    storage       limits on disk use
    status        the pod's status in the API
"""
