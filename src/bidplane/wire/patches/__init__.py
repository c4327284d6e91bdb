"""Patches and field ownership: JSON patch, merge patches, server-side apply. Pure."""
