"""The Model Context Protocol: an agent's own affairs as tools for a model."""
