"""Resource usage of pods, from cgroups or /proc, and the holders of declared GPUs."""
