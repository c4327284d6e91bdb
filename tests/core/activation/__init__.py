"""Decisions about services that sleep."""
