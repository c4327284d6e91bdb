"""
Controllers: one file each, one writer for each object. They talk through the Kubernetes API and
never to each other; `wiring/controllers.py` lists them.
"""
