"""
For tests, ours and other projects': a real Kubernetes control plane, and pytest fixtures.

`plugin` has the fixtures, `cluster` the control plane, `rig` its binaries, `ownkernel` a kernel for
what this machine may lack, `guard` ends what a test leaves. May start processes and fetch or build
binaries into a cache; nothing of Bidplane imports it.
"""
