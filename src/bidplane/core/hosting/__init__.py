"""
An agent's objects on the host. Pure: returns drafts of the host's objects.

    translation  names and metadata of copies; bids, device claims, config maps, volume claims
    hostpods     a pod as the host runs it
    references   the objects that a pod refers to
    hostnames    the names that a pod can resolve
    hostaccess   access to the machine, which only trusted agents' pods may ask for
"""
