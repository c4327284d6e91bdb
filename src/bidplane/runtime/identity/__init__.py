"""Certificates and tokens of an installation."""
