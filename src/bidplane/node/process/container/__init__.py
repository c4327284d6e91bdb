"""
One container: its launch, the shim that supervises it, and its adoption after a restart.

`launch` makes the command, `starting` starts or adopts, `container` is one from start to end.
`forkserver` and `shim` are programs of their own, which outlive the agent; `shims` is the node's
side of them. `sessions` runs more commands in a container. May fork, signal and wait for processes.
"""
