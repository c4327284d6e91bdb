"""Planes over HTTP: paths, credentials, bodies and answers around the verbs."""

from bidplane.plane.http.app import serve

__all__ = ["serve"]
