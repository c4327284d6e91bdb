"""
Exec, attach and port-forward: kubectl's protocols at one end, a `PodRuntime` at the other. Frames
are `wire.streams`'; here are the connections (`channels`, `spdy`), the copying between them
(`command`, `forward`, `pipes`), and who asks for what (`requests`).
"""
