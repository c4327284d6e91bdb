"""How much a test tries: enough to notice a fault in `make test`, far more in `make explore`."""

from __future__ import annotations

import os

EXPLORING = bool(os.environ.get("BIDPLANE_EXPLORE"))


def effort(usual: int, exploring: int) -> int:
    """Return how many cases to try in this run."""
    return exploring if EXPLORING else usual
