"""
Proposals: carries each through its life of verdict, wait, application and measurement. The gate
judges and applies (`gate`); this controller alone writes the status of Proposals.
"""

from __future__ import annotations

from bidplane.controllers.proposal.controller import ProposalController

__all__ = ["ProposalController"]
