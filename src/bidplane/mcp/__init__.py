"""The Model Context Protocol: an agent's market as tools for a model."""
