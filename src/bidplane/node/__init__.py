"""
Nodes: kubelets for simulated pods and for pods as processes.

`agent` registers a node, its devices (`inventory/`) and its heartbeat; `server` serves a kubelet's
paths, with `streams/` for exec and logs, to whom `auth` allows. The pods behind it are an
`api.PodRuntime`: `simulated…` runs nothing, `process/` runs processes. `fleet` and `offering` read
a declared fleet. A node speaks to the host's API only, with a credential of its own.
"""
