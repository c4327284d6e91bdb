"""For tests, ours and other projects': a real Kubernetes control plane, and pytest fixtures."""
