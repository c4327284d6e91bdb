"""The objects of `bidplane serve`."""
