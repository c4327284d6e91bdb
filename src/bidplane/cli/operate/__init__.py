"""Commands that run an installation and tell how it is."""
