"""Clearing one lot: who wins, what fits, and who pays for whom it displaces. Pure."""
