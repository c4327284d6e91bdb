"""Schemas of kinds, built-in and custom: decoding, validation, typed values, OpenAPI. Pure."""
