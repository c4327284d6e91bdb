"""
The sandbox around a container.

`confinement` is the chain of commands before the container's own: its user (`users`), limits,
namespaces and view of the file system (`filesystem`, by bubblewrap), and forbidden system calls
(`seccomp`). `join` enters a running one. May touch users, cgroups and limits of this machine.
"""
