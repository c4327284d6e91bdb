"""
CPU and memory that owners of the host's nodes offer to pods without GPUs: the offers controller
shows each offer as a Node in the planes that have such pods. It alone writes those Nodes.
"""

from bidplane.controllers.offer.controller import OffersController

__all__ = ["OffersController"]
