"""Volumes as directories, opened so that no tenant's path leads out of its own."""
