"""Asks for GPUs of several lots, all or none, and the lots that must be cleared together. Pure."""
