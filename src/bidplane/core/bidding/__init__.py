"""Bids from what agents ask for: pods, claims and annotations become asks with a price. Pure."""
