"""
A read-only look at a cluster's pods with GPUs: how long they waited, and what they held without
using it. Pure.

`model` has the recording: pods, nodes, and the stretches in which each device was busy or idle.
`objects` reads pods from Kubernetes' objects, `series` from the points of a Prometheus, which
`queries` asks for. `stretches` joins steps of measurement, `idle` adds up GPU-hours, `waiting` the
waits by a pod's size.
"""
